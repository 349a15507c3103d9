"""Backends that watch: how many graphs came, how many operators they have, how often they ran.

In: graphs, as any backend gets them. Out: runners that do what eager does, and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.contract.backend import hookimpl
from tracer_core.registry.discovery import manager


class CountingBackend:
    """A backend in torch.compile's convention that runs what was captured. Mutable: it counts.

    Attributes:
        graphs: The captured graphs, in order.
        calls: The number of their runs.
    """

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.calls = 0

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Takes a graph, and returns a function that runs it as it is."""
        self.graphs.append(gm)
        forward = gm.forward

        def run(*inputs: Any) -> Any:
            self.calls += 1
            return forward(*inputs)

        return run

    @property
    def op_count(self) -> int:
        """The number of function and method calls in all graphs."""
        return sum(self.ops(gm) for gm in self.graphs)

    @staticmethod
    def ops(gm: torch.fx.GraphModule) -> int:
        """Returns the number of function and method calls in one graph."""
        return sum(
            node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes
        )


class CaptureCounter:
    """A context that counts what capture does, with every backend. Mutable.

    Attributes:
        graphs: The names of the captured graphs, in order.
        breaks: One (kind, reason, location) per graph break.
        recompiles: One (function, reason) per recompile.
    """

    def __init__(self) -> None:
        self.graphs: list[str] = []
        self.breaks: list[tuple[str, str, str]] = []
        self.recompiles: list[tuple[str, str]] = []

    @hookimpl
    def tracer_graph_captured(self, name: str) -> None:
        """Counts a graph."""
        self.graphs.append(name)

    @hookimpl
    def tracer_graph_break(self, kind: str, reason: str, location: str) -> None:
        """Counts a graph break."""
        self.breaks.append((kind, reason, location))

    @hookimpl
    def tracer_recompile(self, function: str, reason: str) -> None:
        """Counts a recompile."""
        self.recompiles.append((function, reason))

    def __enter__(self) -> CaptureCounter:
        manager().register(self)
        return self

    def __exit__(self, *exception: object) -> None:
        manager().unregister(self)
