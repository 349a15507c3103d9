"""Writes cache entries down as JSON, for `reader` in another process.

Raises NotPortable with the reason where an entry cannot be made again, or another process could not
tell that it no longer holds.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import marshal
import types
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tracer_core.aot.compiled_graph import RunnerArtifacts, TrainingArtifacts
from tracer_core.aot.frozen_parameters import Frozen
from tracer_core.bytecode.resume_points import FrameLayout
from tracer_core.contract.backend import resolve
from tracer_core.contract.runner import NOTHING
from tracer_core.contract.specs import CompileSpec
from tracer_core.errors import BackendError
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.store.code_identity import code_hash
from tracer_core.execution.store.describe import EntryDescriber
from tracer_core.execution.store.distributions import modules_in, of_modules
from tracer_core.execution.store.values import (
    Describer,
    Node,
    NotPortable,
    constant,
    contents,
)
from tracer_core.fx_capture.higher_order_calls import CheckpointCall, Target
from tracer_core.guards.generated_code import compiled
from tracer_core.limits import MAX_PERSISTED_INT_BITS, MAX_PERSISTED_TENSOR_BYTES
from tracer_core.options import CompileConfig
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket

#: Packages whose functions a graph may call: their versions, or sources, are compared.
_KNOWN_PACKAGES = frozenset({"torch", "_operator", "operator", "builtins", "math", "tracer_core"})
#: Namespaces of operators that no Python code of a program defines.
_KNOWN_OPERATORS = frozenset({"aten", "prims", "torchvision"})
#: Device types of constant tensors that are persisted.
_DEVICES = ("cpu", "cuda")
#: In the text of entries that name lines of the program.
_NAMES_LINES = "calling_code"


class NotYet(NotPortable):
    """An entry can be written down later."""


def _is_start(key: Any) -> bool:
    """Returns whether the key of a code region is that of a function's start."""
    return not (isinstance(key, tuple) and key and isinstance(key[0], FrameLayout))


def entry_to_json(
    key: Any, record: Captured, function: Any, config: CompileConfig
) -> dict[str, Any]:
    """Returns one entry as JSON. key: of its code region. function: what was compiled. Raises
    NotPortable."""
    if record.portable.unguarded:
        raise NotPortable(record.portable.unguarded[0])
    for reason in () if record.graph is None else _unknown_code(record.graph):
        raise NotPortable(reason)
    if any(
        type(number) is int and number.bit_length() > MAX_PERSISTED_INT_BITS
        for number in record.numbers.values()
    ):
        raise NotPortable("a number has more digits than JSON takes")
    describe = EntryDescriber(record, function)
    start = _is_start(key)
    lines = _NAMES_LINES in record.text
    place = list(key) if start else describe.describe_own(key)
    constants = {name: describe.constant(name, obj) for name, obj in record.constants.items()}
    code = [[described, code_hash(f.__code__, lines)] for f, described in _followed(describe)]
    modules = {*modules_in([place, list(constants.values()), code]), *_modules_of(record)}
    return {
        "name": record.name,
        "key": place,
        "start": start,
        "text": record.text,
        "compiled": base64.b64encode(marshal.dumps(compiled(record.text))).decode(),
        "constants": constants,
        "code": code,
        "distributions": of_modules(modules),
        "lines": lines,
        "guards": _packed(record.check_first.conditions()),
        "roots": record.portable.roots,
        "settings": record.portable.settings,
        "op_count": record.op_count,
        "break": None if record.break_ is None else dataclasses.astuple(record.break_),
        "speculated": list(record.speculated),
        "shapes": record.shapes,
        "numbers": record.numbers,
        "graph": _graph_to_json(record, describe, config),
    }


def _packed(lines: Sequence[str]) -> str:
    """Returns lines that are rarely read in a twentieth of their size."""
    text = "\n".join(line.replace("\n", " ") for line in lines)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"))).decode()


def _followed(describe: EntryDescriber) -> Iterator[tuple[types.FunctionType, Any]]:
    """Yields the functions whose bytecode was followed, with where they are found."""
    portable = describe.record.portable
    if len(portable.functions) < len(portable.interpreted):
        raise NotPortable("a function that was followed no longer exists")
    for function in portable.functions:
        if describe.known(function):
            yield function, describe.refer(function)


def _modules_of(record: Captured) -> Iterator[str]:
    """Yields the modules of the code that was followed, and the namespaces of the operators."""
    for function in record.portable.functions:
        yield str(function.__globals__.get("__name__") or "")
    for node in () if record.graph is None else record.graph.graph.nodes:
        if isinstance(node.target, (OpOverload, OpOverloadPacket)):
            yield str(node.target).partition(".")[0]


def _unknown_code(gm: torch.fx.GraphModule) -> Iterator[str]:
    """Yields why a graph runs code of the program that was not followed."""
    for node in gm.graph.nodes:
        target = node.target
        if isinstance(target, CheckpointCall):
            yield from _unknown_code(target.graph)
        elif isinstance(target, Target):
            yield f"it calls {target.title} as one node"
        elif isinstance(target, (OpOverload, OpOverloadPacket)):
            space = str(target).partition(".")[0]
            if space not in _KNOWN_OPERATORS:
                yield f"it calls the operator {target}, whose code is not known"
        elif node.op == "call_function":
            module = getattr(target, "__module__", None) or type(target).__module__
            if module.partition(".")[0] not in _KNOWN_PACKAGES:
                yield f"it calls {module}.{getattr(target, '__qualname__', target)} as one node"
        elif node.op in ("call_module", "get_attr"):
            yield f"its graph holds {node.target}"


def _graph_to_json(record: Captured, describe: EntryDescriber, config: CompileConfig) -> Any:
    if record.runner is None:
        return None
    if record.pending is not None:
        raise NotPortable("it could not be compiled")
    parts, fallback = record.runner.artifacts, record.runner.fallback
    if parts is None:
        several = "it has several graphs (sizes that depend on data, or several backends)"
        raise NotPortable(several if fallback is None else fallback.reason)
    if parts.substitute is not None and parts.substitute.used:
        raise NotPortable("its backend failed at the first call")
    data, graph = graph_to_json(parts, config)
    return {
        "backend": base64.b64encode(data).decode(),
        **graph,
        "grad_mode": parts.grad_mode,
        "is_step": parts.is_step,
        "used_up": list(parts.used_up),
        "training": None if parts.training is None else _training_to_json(
            parts.training, record, describe, config),
    }  # fmt: skip


def constant_to_json(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns a small tensor that the program makes of numbers."""
    simple = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not simple or tensor.device.type not in _DEVICES or not tensor.is_contiguous():
        raise NotPortable("its graph holds constant tensors that are not plain")
    if tensor.nbytes > MAX_PERSISTED_TENSOR_BYTES or tensor.requires_grad or tensor.is_inference():
        raise NotPortable("its graph holds constant tensors")
    data = bytes(tensor.flatten().view(torch.uint8).cpu().numpy()) if tensor.numel() else b""
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "shape": list(tensor.shape),
        "data": base64.b64encode(data).decode(),
    }


def graph_to_json(
    parts: RunnerArtifacts, config: CompileConfig, architectures: Sequence[str] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Returns a compiled graph for `persisted_runner`.

    Args:
        parts: The graph.
        config: Of its compilation.
        architectures: The GPUs that a package is for; None: the graph is stored for this machine.

    Returns:
        The backend's own form, b"" where nothing is computed; and the rest.

    Raises:
        NotPortable: The backend cannot serialize it, or it holds constants that cannot be stored.
    """
    return _serialized(parts, config, architectures), {
        "spec": spec_to_json(parts.spec),
        "plan": None if parts.plan.trivial else parts.plan.text(),
        "constants": [constant_to_json(constant) for constant in parts.plan.constants],
        "modes": list(parts.modes),
    }


def _serialized(
    parts: RunnerArtifacts, config: CompileConfig, architectures: Sequence[str] | None
) -> bytes:
    if parts.runner is NOTHING:
        return b""
    if isinstance(parts.runner.run, Frozen):
        raise NotPortable(
            "its parameters are constants (freeze=True): what was made of them is not stored"
        )
    backend = config.backend
    assert backend.serialize is not None
    try:
        if architectures is not None and backend.serialize_for is not None:
            return resolve(backend.serialize_for)(parts.runner, architectures)
        return resolve(backend.serialize)(parts.runner)
    except BackendError as error:
        raise NotPortable(error.detail) from error


def _training_to_json(
    training: TrainingArtifacts, record: Captured, describe: EntryDescriber, config: CompileConfig
) -> dict[str, Any]:
    """Returns what the backward of a forward graph takes: the graphs compiled so far, and the
    captured graph as Python, for gradients that none of them computes."""
    node, again = training.node, training.again
    if again.obstacle and len(node.tangents) > 1:
        raise NotPortable(f"the gradient of some outputs alone needs its graph: {again.obstacle}")
    backwards = []
    for tangents, gradients, parts in training.backwards():
        if parts is None:
            raise NotPortable("a part of its backward runs without the backend")
        data = base64.b64encode(_serialized(parts, config, None)).decode()
        spec = spec_to_json(parts.spec)
        backwards.append([tangents, gradients, {"backend": data, "spec": spec}])
    if not backwards:
        raise NotYet("its backward was not run yet")
    assert record.graph is not None
    code = record.graph.graph.python_code("self")
    used = _names_in(compiled(code.src))
    with_text = dataclasses.replace(again, forward=code.src)  # type: ignore[arg-type]
    return {
        "tangents": node.tangents,
        "node": describe.describe_own(node),
        "again": describe.describe_own(with_text),
        "globals": {
            name: describe.constant(name, value)
            for name, value in code.globals.items()
            if name in used
        },
        "backwards": backwards,
    }


def _names_in(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def spec_to_json(spec: CompileSpec) -> Node:
    """Returns a spec without its options, for `persisted_runner.spec_from_json`."""
    return Describer(_spec_leaf).describe(dataclasses.replace(spec, options=None), "spec")


def _spec_leaf(value: Any, where: str) -> Node | None:
    if isinstance(value, enum.Enum):
        return {type(value).__name__: value.value}
    if constant(value) is not None or contents(value) is not None:
        return None
    return str(value)  # a symbolic size: "s0 + 1"
