"""A function's graph with its weights inside, as a backend's `write_library` takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

import tracer_core
from inductor_backend.plugin import BACKEND
from tracer_core.plugin_api import CompileSpec, Runner

FREEZE = {"freeze": True}


class Recorded:
    """The graphs that a backend is given, and the tensors that are bound to their constants; they
    run as ATen's operators.
    """

    def __init__(self) -> None:
        self.graphs: list[tuple[torch.fx.GraphModule, CompileSpec]] = []
        self.tensors: list[Sequence[torch.Tensor]] = []
        self.backend = replace(BACKEND, compile=self._compile, supports=None)

    def _compile(self, gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
        self.graphs.append((gm, spec))

        def run(inputs: list[Any]) -> Sequence[Any]:
            return gm(*inputs)

        def bound(tensors: Sequence[torch.Tensor]) -> Any:
            self.tensors.append(tensors)
            return run

        return Runner(run, bind_constants=bound)


def frozen_graph(
    fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[torch.fx.GraphModule, CompileSpec]:
    """The one graph of ``fn(*args, **kwargs)`` for inference, its weights as ``get_attr`` tensors."""
    recorded = Recorded()
    fast = tracer_core.compile(fn, backend=recorded.backend, options=FREEZE, fullgraph=True)
    with torch.no_grad():
        fast(*args, **kwargs)
    ((gm, spec),) = recorded.graphs
    return with_weights(gm, spec, recorded.tensors[0] if spec.constants else ())


def with_weights(
    gm: torch.fx.GraphModule, spec: CompileSpec, tensors: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, CompileSpec]:
    """The graph with its constant inputs as ``get_attr`` tensors."""
    graph = torch.fx.Graph()
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    root = torch.nn.Module()
    values = dict(zip(spec.constants, tensors, strict=True))
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if number not in values:
            result[node] = graph.node_copy(node)
            continue
        root.register_buffer(f"weight_{number}", values[number])
        result[node] = graph.get_attr(f"weight_{number}")
        result[node].meta = dict(node.meta)
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            root.register_buffer(node.target, getattr(gm, node.target))
        if node not in result:
            result[node] = graph.node_copy(node, result.__getitem__)
    inputs = tuple(value for number, value in enumerate(spec.inputs) if number not in values)
    return torch.fx.GraphModule(root, graph), replace(spec, inputs=inputs, constants=())
