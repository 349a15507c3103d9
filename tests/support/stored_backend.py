"""`BACKEND`: runs a graph of ATen operators as Python, and stores it as its text.

What is kept of a program can be tested with it in a small part of the time that kernels take.
`OTHER_RNG` is the same backend with other random numbers than eager, as kernels on a GPU have;
a program inside `as_its_rng` has those numbers in eager mode.
"""

from __future__ import annotations

import importlib
import io
import types
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tracer_core.plugin_api import Backend, BackendError, CompileSpec, Runner, Training


class _Holder:
    """Holds the graph's tensors by their paths."""


def _runner(source: str, names: dict[str, Any], tensors: dict[str, Any], early: Any) -> Runner:
    scope, holder = dict(names), _Holder()
    for path, value in tensors.items():
        *parents, last = path.split(".")
        at: Any = holder
        for one in parents:
            at = vars(at).setdefault(one, _Holder())
        setattr(at, last, value)
    exec(source, scope)
    forward = scope["forward"]
    artifact = source, names, tensors, early
    return Runner(
        lambda inputs: forward(holder, *inputs), mutated_on_error=early, artifact=artifact
    )


def compile(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    code = graph.graph.python_code("self")
    tensors: dict[str, Any] = {}
    for node in graph.graph.find_nodes(op="get_attr"):
        tensors[node.target] = graph
        for part in node.target.split("."):
            tensors[node.target] = getattr(tensors[node.target], part)
    early = frozenset[int]() if spec.mutations else None
    return _runner(code.src, dict(code.globals), tensors, early)


def compile_drawing(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    for node in copied.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            with copied.inserting_before(node):
                copied.call_function(torch.ops.aten.rand.default, ([3],))
    return compile(torch.fx.GraphModule(graph, copied), spec)


def serialize(runner: Runner) -> bytes:
    if runner.artifact is None:
        raise BackendError("stored", "serialize", f"{runner!r} was not made by this backend")
    source, names, tensors, early = runner.artifact
    modules = {k: v.__name__ for k, v in names.items() if isinstance(v, types.ModuleType)}
    others = {k: v for k, v in names.items() if k not in modules}
    file = io.BytesIO()
    try:
        torch.save((source, modules, others, tensors, early), file)
    except (TypeError, AttributeError, RuntimeError) as error:  # what cannot be pickled
        raise BackendError("stored", "serialize", str(error)) from error
    return file.getvalue()


def deserialize(data: bytes, spec: CompileSpec) -> Runner:
    source, modules, others, tensors, early = torch.load(io.BytesIO(data), weights_only=False)
    actual = {name: importlib.import_module(module) for name, module in modules.items()}
    return _runner(source, {**actual, **others}, tensors, early)


BACKEND = Backend(
    name="stored",
    compile="tests.support.stored_backend:compile",
    description="runs ATen graphs as Python, and stores them",
    ir="aten",
    training=Training.FORWARD_BACKWARD,
    modes={"default": "runs the lowered graph"},
    shapes="symbolic",
    numbers="inputs",
    serialize="tests.support.stored_backend:serialize",
    deserialize="tests.support.stored_backend:deserialize",
)

OTHER_RNG = replace(
    BACKEND, name="draws_otherwise", compile="tests.support.stored_backend:compile_drawing"
)


class as_its_rng(TorchDispatchMode):
    """A context in which eager mode draws the numbers of `OTHER_RNG`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.rand(3)
        return func(*args, **(kwargs or {}))
