"""Runs graphs with symbolic sizes on backends that take static ones: compiles once per set of
sizes.

The runner reads the sizes of each call and compiles for new ones. A compiled graph only runs on the
sizes it was compiled for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.symbolic_sizes import size_origins, size_reader
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.debug.graph_names import derived_name


def input_values(gm: torch.fx.GraphModule) -> list[Any]:
    """Returns ``meta["val"]`` of each placeholder (None where there is none)."""
    return [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]


def has_symbols(gm: torch.fx.GraphModule) -> bool:
    """Whether a size of an input is symbolic."""
    return bool(size_origins(input_values(gm)))


class PerSize:
    """A runner. Mutable: caches what it compiled. compile_fixed: compiles a graph without
    symbols.
    """

    def __init__(
        self, captured: CapturedGraph, compile_fixed: Callable[[CapturedGraph], RunFunction]
    ) -> None:
        # weak: nothing here keeps them alive
        self._captured = dataclasses.replace(captured, real_inputs=())
        self._compile = compile_fixed
        self._sizes_of = size_reader(size_origins(input_values(captured.gm)).values())
        self._runners: dict[tuple[int, ...], RunFunction] = {}

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        sizes = self._sizes_of(inputs)
        runner = self._runners.get(sizes)
        if runner is None:
            runner = self._runners[sizes] = self._compile(self._fixed(inputs, len(self._runners)))
        return runner(inputs)

    def _fixed(self, inputs: Sequence[Any], number: int) -> CapturedGraph:
        """Returns the captured graph for the sizes of `inputs`; lowering recomputes its values."""
        graph = torch.fx.Graph()
        returned = graph.graph_copy(self._captured.gm.graph, {})
        graph.output(returned)
        mode = torch_private.fake_tensor_mode()
        arguments = iter(inputs)
        for node in graph.nodes:
            node.meta.pop("val", None)
            if node.op == "placeholder":
                value = next(arguments)
                is_tensor = isinstance(value, torch.Tensor)
                node.meta["val"] = torch_private.to_fake(mode, value) if is_tensor else value
        gm = torch.fx.GraphModule(self._captured.gm, graph)
        name = derived_name(self._captured.name, str(number))
        return dataclasses.replace(self._captured, gm=gm, real_inputs=tuple(inputs), name=name)
