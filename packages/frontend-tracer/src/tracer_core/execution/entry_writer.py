"""Writes cache entries down as JSON, for `stored_entry` in another process.

Raises NotPortable with the reason where an entry cannot be made again, or another process could not
tell that it no longer holds.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import marshal
import types
from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.aot.frozen_parameters import Frozen
from tracer_core.bytecode.frame_layout import FrameLayout
from tracer_core.contract.backend import resolve
from tracer_core.contract.specs import CompileSpec
from tracer_core.errors import BackendError
from tracer_core.execution.capture_result import Captured
from tracer_core.execution.code_identity import code_hash
from tracer_core.execution.generated_code import compiled
from tracer_core.execution.object_descriptions import Describer, NotPortable
from tracer_core.fx_capture.higher_order_calls import CheckpointCall, Target
from tracer_core.options import CompileConfig
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket

#: Packages whose functions a graph may call: their versions, or sources, are compared.
_KNOWN_PACKAGES = frozenset({"torch", "_operator", "operator", "builtins", "math", "tracer_core"})
#: Namespaces of operators that no Python code of a program defines.
_KNOWN_OPERATORS = frozenset({"aten", "prims", "torchvision"})
#: Of integers that JSON takes.
_MOST_BITS = 1024
#: In the text of entries that name lines of the program.
_NAMES_LINES = "calling_code"


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
    if any(type(one) is int and one.bit_length() > _MOST_BITS for one in record.numbers.values()):
        raise NotPortable("a number has more digits than JSON takes")
    describe = Describer(record, function)
    start = _is_start(key)
    lines = _NAMES_LINES in record.text
    return {
        "name": record.name,
        "key": list(key) if start else describe.layouts(key),
        "start": start,
        "text": record.text,
        "compiled": base64.b64encode(marshal.dumps(compiled(record.text))).decode(),
        "constants": {name: describe.constant(name, obj) for name, obj in record.constants.items()},
        "code": [[described, code_hash(f.__code__, lines)] for f, described in _followed(describe)],
        "lines": lines,
        "roots": list(record.portable.roots),
        "settings": record.portable.settings,
        "op_count": record.op_count,
        "break": None if record.break_ is None else dataclasses.astuple(record.break_),
        "shapes": record.shapes,
        "numbers": record.numbers,
        "graph": _graph_to_json(record, config),
    }


def _followed(describe: Describer) -> Iterator[tuple[types.FunctionType, Any]]:
    """Yields the functions whose bytecode was followed, with where they are found."""
    portable = describe.record.portable
    if len(portable.functions) < len(portable.interpreted):
        raise NotPortable("a function that was followed no longer exists")
    for function in portable.functions:
        if describe.known(function):
            yield function, describe.describe(function)


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


def _graph_to_json(record: Captured, config: CompileConfig) -> Any:
    if record.runner is None:
        return None
    if record.pending is not None:
        raise NotPortable("it could not be compiled")
    parts, fallback = record.runner.artifacts, record.runner.fallback
    if parts is None:
        several = (
            "it has several graphs (training, sizes that depend on data, or several backends),"
            " which are not stored"
        )
        raise NotPortable(several if fallback is None else fallback.reason)
    if parts.plan.constants:
        raise NotPortable("its graph holds constant tensors")
    if isinstance(parts.runner.run, Frozen):
        raise NotPortable(
            "its parameters are constants (freeze=True): what was made of them is not stored"
        )
    try:
        data: bytes = resolve(config.backend.serialize)(parts.runner)
    except BackendError as error:
        raise NotPortable(error.detail) from error
    return {
        "backend": base64.b64encode(data).decode(),
        "spec": _spec_to_json(parts.spec),
        "plan": None if parts.plan.trivial else parts.plan.text(),
        "modes": list(parts.modes),
    }


def _to_json(value: Any) -> Any:
    """Converts a field of a spec to JSON: rows to dictionaries, symbolic sizes to text."""
    if dataclasses.is_dataclass(value):
        return {one.name: _to_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_to_json(one) for one in value]
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, (int, str)):
        return value
    return str(value).removeprefix("torch.")


def _spec_to_json(spec: CompileSpec) -> dict[str, Any]:
    stored: dict[str, Any] = _to_json(dataclasses.replace(spec, options=None))
    del stored["options"]
    return stored
