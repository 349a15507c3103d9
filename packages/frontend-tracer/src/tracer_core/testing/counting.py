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
    """A backend in torch.compile's convention that runs what was captured (mutable: it counts).

    graphs: those it was given, in order. calls: how often any of them ran.
    """

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.calls = 0

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        self.graphs.append(gm)
        forward = gm.forward

        def run(*inputs: Any) -> Any:
            self.calls += 1
            return forward(*inputs)

        return run

    @property
    def op_count(self) -> int:
        """Function and method calls in all graphs."""
        return sum(self.ops(gm) for gm in self.graphs)

    @staticmethod
    def ops(gm: torch.fx.GraphModule) -> int:
        """Function and method calls in one graph."""
        return sum(
            node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes
        )


class CaptureCounter:
    """Counts what capture does while it is entered (mutable); works with every backend.

    graphs: names in order. breaks: (kind, reason, location). recompiles: (function, reason).
    """

    def __init__(self) -> None:
        self.graphs: list[str] = []
        self.breaks: list[tuple[str, str, str]] = []
        self.recompiles: list[tuple[str, str]] = []

    @hookimpl
    def tracer_graph_captured(self, name: str) -> None:
        self.graphs.append(name)

    @hookimpl
    def tracer_graph_break(self, kind: str, reason: str, location: str) -> None:
        self.breaks.append((kind, reason, location))

    @hookimpl
    def tracer_recompile(self, function: str, reason: str) -> None:
        self.recompiles.append((function, reason))

    def __enter__(self) -> CaptureCounter:
        manager().register(self)
        return self

    def __exit__(self, *exception: object) -> None:
        manager().unregister(self)
