"""A clock that the test sets: the program and the backend say what their calls cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tracer_core
from tracer_core.contract.backend import Backend
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.execution.tiers import eager_or_compiled as profitability
from tracer_core.execution.tiers.eager_or_compiled import (
    FIRST_CHECK,
    SAMPLES,
    WARM,
)
from tracer_core.markers import compiled as behind
from tracer_core.plugin_api import Training

#: Enough calls for a comparison of a function that settles at once.
ENOUGH = FIRST_CHECK + 4 * (SAMPLES + WARM) + 8


@dataclass
class Costs:
    """now: of the clock. graph, eager, capture: what a run of a graph, an eager call and the compile
    of a graph cost."""

    now: float = 0.0
    graph: float = 5e-6
    eager: float = 1e-6
    capture: float = 0.0
    graphs: int = 0
    eagers: int = 0
    captures: int = 0

    def call(self) -> None:
        """What the programs call: a cost where they run in eager mode."""
        if not tracer_core.is_compiling():
            self.now += self.eager
            self.eagers += 1


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Costs]:
    """The costs of a process that is not strict, whose clock they are."""
    actual = Costs()
    monkeypatch.setattr(profitability, "clock", lambda: actual.now)
    monkeypatch.setenv("TRACER_STRICT", "0")
    tracer_core.disable(Costs.call)
    yield actual


def counting(costs: Costs, **settings: Any) -> Backend:
    """A backend that is said to fuse, and whose graphs cost what `costs` says."""

    def compile_graph(graph: torch.fx.GraphModule, spec: Any) -> Callable[[list[Any]], Any]:
        costs.captures += 1
        costs.now += costs.capture

        def run(inputs: list[Any]) -> Any:
            costs.graphs += 1
            costs.now += costs.graph
            return graph(*inputs)

        return run

    return Backend(
        name="counting", compile=compile_graph, fuses=True, shapes="symbolic",
        training=Training.FORWARD_BACKWARD, **settings,
    )  # fmt: skip


def doubling(costs: Costs) -> Callable[[torch.Tensor], torch.Tensor]:
    """A program of one operator."""

    def program(x: torch.Tensor) -> torch.Tensor:
        costs.call()
        return x * 2

    return program


def ran(costs: Costs, call: Callable[[], Any]) -> str:
    """How one call ran."""
    graphs, eagers = costs.graphs, costs.eagers
    call()
    return {(0, 1): "eager", (1, 0): "compiled"}[
        min(1, costs.graphs - graphs), costs.eagers - eagers
    ]


def function_behind(fast: Any) -> CompiledFunction:
    actual = behind(fast)
    assert actual is not None and isinstance(actual.function, CompiledFunction)
    return actual.function


def verdicts(fast: Any) -> list[bool]:
    """Whether each comparison so far chose eager mode."""
    return [item.native for item in function_behind(fast).verdicts]
