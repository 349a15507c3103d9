"""Programs that capture again and again: captures are part of what compiled calls cost."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.call_costs import (
    ENOUGH,
    Costs,
    counting,
    doubling,
    function_behind,
    ran,
    verdicts,
)
from tracer_core.execution.entry.guarded_cache import MAX_SHORT_LIVED_OBJECTS
from tracer_core.execution.tiers import eager_or_compiled as profitability
from tracer_core.execution.tiers.eager_or_compiled import (
    FIRST_CHECK,
    MAX_RECAPTURES,
    WATCHED,
)


def test_an_entry_captured_later_begins_another_comparison(costs: Costs) -> None:
    costs.graph, costs.eager = 1e-6, 5e-6
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(ENOUGH):
        fast(torch.ones(4))
    costs.graph = 20e-6
    for _ in range(ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [False]  # nothing was captured: nothing is asked again
    for _ in range(2 * FIRST_CHECK - 1):
        fast(torch.ones(4, 4))
    assert verdicts(fast) == [False]
    for _ in range(2 * ENOUGH):
        fast(torch.ones(4, 4))
    assert verdicts(fast) == [False, True]
    for _ in range(8 * ENOUGH):
        fast(torch.ones(4, 4, 4))
    assert verdicts(fast) == [False, True]  # in eager mode nothing is captured


def scaling(costs: Costs) -> Any:
    """A compiled function that is captured for each class of its first argument, with no limit: as
    programs of many code regions, each with a limit of its own, have none that would help."""

    def program(held: Any, x: torch.Tensor) -> torch.Tensor:
        costs.call()
        return x * held.scale

    fast = tracer_core.compile(program, backend=counting(costs))
    inner = function_behind(fast)
    inner.config = dataclasses.replace(inner.config, recompile_limit=10**6)
    return fast


def held(scale: float) -> Any:
    """An object of a class of its own."""
    return type("Held", (), {"scale": scale})()


def check_scaled(fast: Any, of: Any) -> None:
    assert torch.equal(fast(of, torch.ones(4)), torch.full((4,), float(of.scale)))


def test_a_program_that_captures_in_every_call_gives_way(
    costs: Costs, caplog: pytest.LogCaptureFixture
) -> None:
    """It has objects of new classes in each call, so that no entry ever fits: it loses a bounded
    number of captures, and is tried again only when these are a small part of the time."""
    costs.graph, costs.eager, costs.capture = 1e-6, 1e-3, 1.0
    fast = scaling(costs)
    with caplog.at_level(logging.WARNING, "tracer_core"):
        for n in range(ENOUGH):
            check_scaled(fast, held(n))
        first, spent = costs.captures, function_behind(fast).runtime.tiering.capture_seconds
        assert verdicts(fast) == [True]
        assert first <= 1 + MAX_SHORT_LIVED_OBJECTS + MAX_RECAPTURES // 2
        costs.now += 7 * spent  # not yet
        for n in range(2 * WATCHED):
            check_scaled(fast, held(n))
        assert costs.captures == first
        assert ran(costs, lambda: fast(held(3), torch.ones(4))) == "eager"
        with torch.no_grad():  # there it would capture as often
            assert ran(costs, lambda: fast(held(3), torch.ones(4))) == "eager"
        costs.now += spent
        for n in range(2 * WATCHED):
            check_scaled(fast, held(n))
    assert first < costs.captures <= first + MAX_RECAPTURES // 4 + 1
    assert verdicts(fast) == [True, True]
    said = [
        record.getMessage()
        for record in caplog.records
        if "tried again later" in record.getMessage()
    ]
    assert len(said) == 1
    assert "of the calls captured again" in said[0]


def test_a_program_whose_traces_lead_to_nothing_is_no_longer_traced(
    costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks into a traceback, which is seen late: then the call runs in eager mode. Traces become
    rare (`GuardedCache.skips_capture`) before their cost is compared with eager mode's."""
    monkeypatch.setattr(profitability, "clock", time.perf_counter)

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            raise ValueError("of the program")
        except ValueError as error:
            assert error.__traceback__ is not None
            line = error.__traceback__.tb_lineno
        return x * (line - line + 2)

    fast = tracer_core.compile(program, backend=counting(costs))
    for _ in range(2 * ENOUGH):
        assert torch.equal(fast(torch.ones(4)), torch.full((4,), 2.0))
    assert function_behind(fast).runtime.tiering.n_captures <= MAX_RECAPTURES // 2
    assert verdicts(fast) == []


def test_after_a_pause_a_program_that_settles_now_is_compiled(costs: Costs) -> None:
    costs.graph, costs.eager, costs.capture = 1e-6, 1e-3, 1.0
    fast = scaling(costs)
    for n in range(ENOUGH):
        check_scaled(fast, held(n))
    assert verdicts(fast) == [True]
    costs.now += 1000.0
    item = held(5)
    for _ in range(WATCHED + 2 * ENOUGH):
        check_scaled(fast, item)
    assert verdicts(fast) == [True, False]
    assert ran(costs, lambda: fast(item, torch.ones(4))) == "compiled"


def test_many_objects_that_live_on_are_all_captured(costs: Costs) -> None:
    """The layers of a model, each given to one compiled function."""
    costs.graph, costs.eager, costs.capture = 1e-6, 1e-3, 1.0
    fast = scaling(costs)
    layers = [held(n) for n in range(4 * MAX_RECAPTURES)]
    for _ in range(4):
        for layer in layers:
            check_scaled(fast, layer)
    assert costs.captures == len(layers)
    assert not any(verdicts(fast))
    for item in layers:
        assert ran(costs, lambda value=item: fast(value, torch.ones(4))) == "compiled"


@pytest.mark.parametrize(("eager", "native"), [(1e-3, True), (0.1, False)])
def test_captures_that_go_on_for_long_count_over_all_calls(
    costs: Costs, eager: float, native: bool
) -> None:
    """One call in a hundred captures for a second: little beside long calls, much beside short
    ones, although the calls between have settled."""
    costs.graph, costs.eager, costs.capture = 0.1 * eager, eager, 1.0
    fast, item = scaling(costs), held(1)
    for n in range(100 * 2 * MAX_RECAPTURES):
        check_scaled(fast, held(2) if n % 100 == 99 else item)
    assert any(verdicts(fast)) == native


@pytest.mark.parametrize(("graph", "native"), [(0.5, False), (0.95, True)])
def test_captures_are_part_of_the_calls_that_are_compared(
    costs: Costs, graph: float, native: bool
) -> None:
    """A capture costs less than a compiled call saves, or a little more."""
    costs.graph, costs.eager, costs.capture = graph * 1e-3, 1e-3, 0.2e-3
    fast = scaling(costs)
    for n in range(ENOUGH):
        check_scaled(fast, held(n))
    assert verdicts(fast)[:1] == [native]
