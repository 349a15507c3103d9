"""Writes a program as a shared library, by a backend that can (`write_library`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tracer_core.aot.output_aliasing import FromGraph
from tracer_core.contract.backend import resolve
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import PackageError
from tracer_core.execution.store.values import leaf_nodes
from tracer_core.export.build import PackagedProgram, captured, prepared


def package_library(
    fn: Any,
    args: Sequence[Any],
    directory: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any],
    backend: Any,
    options: Any,
) -> None:
    """See `tracer_core.package_library`."""
    config = build_config(backend=backend, fullgraph=True, dynamic=None, options=options)
    write = config.backend.write_library
    if write is None:
        raise PackageError(f"backend {config.backend.name!r} does not offer write_library")
    lowered: list[tuple[torch.fx.GraphModule, CompileSpec]] = []

    def record(gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
        lowered.append((gm, spec))
        return Runner(lambda inputs: gm(*inputs))

    recording = replace(config.backend, compile=record, supports=None, prepare=None)
    call = prepared(fn, tuple(args), dict(kwargs))
    program = captured(call, replace(config, backend=recording), "package")
    if len(lowered) != 1:
        raise PackageError(f"{call.name} runs no operator, or its graph is compiled in parts")
    ((gm, spec),) = lowered
    resolve(write)(*_with_weights(program, gm, spec), Path(directory))


def _with_weights(
    program: PackagedProgram, gm: torch.fx.GraphModule, spec: CompileSpec
) -> tuple[torch.fx.GraphModule, CompileSpec]:
    """Returns the lowered graph with the program's tensors as ``get_attr`` tensors."""
    name = program.call.name
    assert program.runner is not None
    assert program.runner.artifacts is not None
    plan = program.runner.artifacts.plan
    kinds = {kind for leaf in leaf_nodes(program.outputs) for kind in leaf}
    if not kinds <= {"output"} or not all(isinstance(step, FromGraph) for step in plan.steps):
        raise PackageError(f"{name} returns a view of an input, an input, a weight or a number")
    tensors: list[torch.Tensor | None] = [
        program.states[at].tensor if kind == "state" else None for kind, at in program.inputs
    ]
    tensors += plan.constants
    graph, root = torch.fx.Graph(), torch.nn.Module()
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    placeholders = gm.graph.find_nodes(op="placeholder")
    for number, (node, tensor) in enumerate(zip(placeholders, tensors, strict=True)):
        if tensor is None:
            result[node] = graph.node_copy(node)
            continue
        root.register_buffer(f"weight_{number}", tensor.detach())
        result[node] = graph.get_attr(f"weight_{number}")
        result[node].meta = dict(node.meta)
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            root.register_buffer(node.target, getattr(gm, node.target))
        if node.op == "output":
            arg = node.args[0]
            outputs = [arg[step.index] for step in plan.steps if isinstance(step, FromGraph)]
            graph.output(tuple(result[output] for output in outputs))
        elif node not in result:
            result[node] = graph.node_copy(node, result.__getitem__)
    inputs = tuple(
        value for value, tensor in zip(spec.inputs, tensors, strict=True) if tensor is None
    )
    return torch.fx.GraphModule(root, graph), replace(spec, inputs=inputs, constants=())
