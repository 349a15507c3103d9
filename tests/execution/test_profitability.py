"""Where compiled calls are slower than eager ones, a settled function runs in eager mode, and says
so once. The clock is the test's: the program and the backend say what they cost."""

from __future__ import annotations

import logging
import random
import statistics
import time
from dataclasses import dataclass
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
from tracer_core.execution.tiers import eager_or_compiled as profitability
from tracer_core.execution.tiers.eager_or_compiled import (
    EARLY,
    FIRST_CHECK,
    MAX_SAMPLES,
    SAMPLES,
    WARM,
    WATCHED,
    verdict,
)


def test_slower_compiled_calls_give_way_once(
    costs: Costs, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        costs.call()
        seen.append(n)
        return x * 2 + n

    fast = tracer_core.compile(program, backend=counting(costs))
    x = torch.arange(4.0)
    with caplog.at_level(logging.WARNING, "tracer_core"):
        for n in range(4 * ENOUGH):
            assert torch.equal(fast(x, 1), x * 2 + 1)
    assert seen == [1] * 4 * ENOUGH  # no call ran twice, none was left out
    assert verdicts(fast) == [True]
    assert ran(costs, lambda: fast(x, 1)) == "eager"
    said = [record.getMessage() for record in caplog.records if "eagerly" in record.getMessage()]
    assert len(said) == 1
    assert "program: compiled 5.0 µs, eager 1.0 µs a call: runs eagerly" in said[0]
    assert "runs eagerly" in str(tracer_core.last_compile(fast))
    assert "eager 1.0 µs" in tracer_core.explain(fast)(x, 1).skipped[-1]


def test_faster_compiled_calls_stay_and_cost_nothing_more(costs: Costs) -> None:
    costs.graph, costs.eager = 1e-6, 5e-6
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(2 * ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [False]
    assert costs.eagers <= WARM + SAMPLES // 2  # it is seen early
    inner = function_behind(fast)
    assert inner.runtime.regions.positional == {1: inner.runtime.regions.starts[1,]}


def test_a_clear_difference_is_seen_early(costs: Costs) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(FIRST_CHECK + WARM + 4 * EARLY):
        fast(torch.ones(4))
    assert verdicts(fast) == [True]


def test_calls_with_graph_breaks_may_be_long(costs: Costs) -> None:
    costs.graph, costs.eager = 0.2, 0.1

    def program(x: torch.Tensor) -> torch.Tensor:
        costs.call()
        x = x * 2
        tracer_core.graph_break()
        return x + 1

    fast = tracer_core.compile(program, backend=counting(costs))
    for _ in range(2 * ENOUGH):
        assert torch.equal(fast(torch.ones(4)), torch.full((4,), 3.0))
    assert verdicts(fast) == [True]


def test_samples_that_contradict_one_another_begin_another_comparison(costs: Costs) -> None:
    """At first eager mode has the better median and the better sum, but not in most pairs: two of
    five compiled calls are faster."""
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    busy = random.Random(0)
    while not verdicts(fast):
        costs.graph, costs.eager = busy.choice([2.0, 2.0, 2.0, 0.9, 0.9]) * 1e-6, 1e-6
        fast(torch.ones(4))
    assert costs.eagers >= MAX_SAMPLES  # more samples did not help
    (first,) = function_behind(fast).verdicts
    assert first.unclear
    assert not first.native
    costs.graph, costs.eager = 1.4e-6, 1e-6
    for _ in range(2 * ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [False, True]
    assert ran(costs, lambda: fast(torch.ones(4))) == "eager"


def test_where_samples_contradict_one_another_more_of_them_decide(costs: Costs) -> None:
    """A compiled call is a tenth slower, but single calls differ by more."""
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    busy = random.Random(0)
    while not verdicts(fast):
        costs.graph, costs.eager = (busy.gauss(a, 0.15) * 1e-6 for a in (1.1, 1.0))
        fast(torch.ones(4))
    assert SAMPLES + WARM < costs.eagers <= 2 * MAX_SAMPLES
    assert verdicts(fast) == [True]


@pytest.mark.parametrize("threads", [1, 2])
def test_with_one_thread_other_processes_do_not_count(
    costs: Costs, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the thread decides where it is the only one that computes."""
    monkeypatch.setattr(profitability, "thread_clock", profitability.clock)
    monkeypatch.setattr(profitability, "clock", time.perf_counter)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        fast = tracer_core.compile(doubling(costs), backend=counting(costs))
        for _ in range(ENOUGH):
            fast(torch.ones(4))
    finally:
        torch.set_num_threads(before)
    (actual, *_) = function_behind(fast).verdicts
    is_of_the_costs = (actual.compiled, actual.eager) == pytest.approx((5e-6, 1e-6))
    assert is_of_the_costs == (threads == 1)


def test_a_difference_of_less_than_a_twentieth_changes_nothing(costs: Costs) -> None:
    costs.graph, costs.eager = 1.04e-6, 1e-6
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(2 * ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [False]


def test_calls_that_compute_long_are_not_tried_in_eager_mode(costs: Costs) -> None:
    costs.graph, costs.eager = 0.2, 0.1
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(2 * ENOUGH):
        fast(torch.ones(4))
    assert costs.eagers == 0


def test_one_long_compiled_call_is_chance(costs: Costs) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for n in range(2 * ENOUGH):
        costs.graph = 0.2 if n == FIRST_CHECK + 1 else 5e-6  # the first one that is measured
        fast(torch.ones(4))
    assert verdicts(fast) == [True]


@pytest.mark.parametrize("off", ["fullgraph", "options", "strict", "variable", "eager", "cuda"])
def test_where_it_does_not_compare(costs: Costs, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user chose to have compiled, or looks into, is compiled; so is what a clock on the
    host does not measure."""
    backend: Any = counting(costs, options=Options)
    settings: dict[str, dict[str, Any]] = {
        "fullgraph": {"fullgraph": True}, "options": {"options": {"level": 2}},
    }  # fmt: skip
    variables = {"strict": "TRACER_STRICT", "variable": "TRACER_ALWAYS_COMPILED"}
    if off in variables:
        monkeypatch.setenv(variables[off], "1")
    if off == "cuda":
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    if off == "eager":
        backend = "eager"
    fast = tracer_core.compile(doubling(costs), backend=backend, **settings.get(off, {}))
    for _ in range(2 * ENOUGH):
        fast(torch.ones(4))
    assert costs.eagers == 0
    assert verdicts(fast) == []


@dataclass(frozen=True)
class Options:
    level: int = 1


def trained(costs: Costs, forward: float, backward: float) -> tuple[Any, list[bool]]:
    """A module whose eager forward and backward cost 10 µs each, whose compiled ones cost what is
    given, after enough steps of training."""
    costs.graph, costs.eager = forward * 1e-6, 10e-6

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        costs.call()
        return x * w

    fast = tracer_core.compile(program, backend=counting(costs))
    w = torch.ones(4, requires_grad=True)
    for n in range(2 * ENOUGH):
        before = costs.eagers
        loss = fast(torch.full((4,), float(n)), w).sum()
        costs.graph = 0.0  # the backward is a graph, too
        loss.backward()
        costs.graph = forward * 1e-6
        costs.now += 10e-6 if costs.eagers > before else backward * 1e-6
        assert w.grad is not None
        assert torch.equal(w.grad, torch.full((4,), float(n)))
        w.grad = None
    return fast, verdicts(fast)


def test_training_counts_the_backward(costs: Costs) -> None:
    assert trained(costs, forward=15, backward=2)[1] == [False]
    assert trained(costs, forward=9, backward=16)[1] == [True]
    # a lead that is seen early is one of the whole step, too
    assert trained(costs, forward=2, backward=30)[1] == [True]
    assert trained(costs, forward=30, backward=2)[1] == [True]


def test_what_was_found_without_gradients_says_nothing_about_training(costs: Costs) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    with torch.no_grad():
        for _ in range(2 * ENOUGH):
            fast(torch.ones(4))
        assert ran(costs, lambda: fast(torch.ones(4))) == "eager"
    x = torch.ones(4, requires_grad=True)
    for _ in range(3):
        assert ran(costs, lambda: fast(x)) == "compiled"
    assert fast(x).requires_grad


def test_a_program_that_became_slow_in_eager_mode_is_compared_again(costs: Costs) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [True]
    costs.eager = 50e-6
    for _ in range(WATCHED + 2 + 2 * ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [True, False]
    assert ran(costs, lambda: fast(torch.ones(4))) == "compiled"


def test_a_program_that_moves_to_a_gpu_is_compiled_again(
    costs: Costs, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [True]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for _ in range(WATCHED):
        assert torch.equal(fast(torch.ones(4)), torch.full((4,), 2.0))
    assert ran(costs, lambda: fast(torch.ones(4))) == "compiled"


def test_one_slow_call_changes_nothing(costs: Costs) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for n in range(20 * ENOUGH):
        costs.eager = 1.0 if n % 64 == 63 else 1e-6
        fast(torch.ones(4))
    assert verdicts(fast) == [True]


@pytest.mark.parametrize(("kinds", "at"), [(2, 0), (2, 1), (3, 0), (4, 0), (4, 1)])
def test_calls_that_repeat_in_turns_are_judged_alike(costs: Costs, kinds: int, at: int) -> None:
    """Every second, third or fourth call is ten times as long, in both ways: that is no difference
    between the ways."""
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for n in range(2 * ENOUGH):
        costs.graph = costs.eager = 1e-5 if n % kinds == at else 1e-6
        fast(torch.ones(4))
    assert not any(verdicts(fast))


def test_functions_that_call_each_other_are_compared_one_after_the_other(costs: Costs) -> None:
    @tracer_core.disable
    def graph_free() -> None:
        costs.now += 1e-7

    def inner(x: torch.Tensor) -> torch.Tensor:
        costs.call()
        return x * 2

    fast_inner = tracer_core.compile(inner, backend=counting(costs))

    @tracer_core.disable
    def between(x: torch.Tensor) -> Any:
        return fast_inner(x)

    def outer(x: torch.Tensor) -> torch.Tensor:
        graph_free()
        return between(x) + 1

    fast = tracer_core.compile(outer, backend=counting(costs))
    for _ in range(8 * ENOUGH):
        assert torch.equal(fast(torch.ones(4)), torch.full((4,), 3.0))
        current = profitability._current
        if current is not None and current() is not None:
            owners = [function_behind(value) for value in (fast, fast_inner)]
            timed = [owner for owner in owners if owner.runtime.regions.positional[1] is current()]
            assert len(timed) == 1
    assert len(verdicts(fast)) == len(verdicts(fast_inner)) == 1
    assert verdicts(fast_inner) == [True]


def test_a_call_that_raises_does_not_count(costs: Costs) -> None:
    calls = 0

    def program(x: torch.Tensor, fails: bool) -> torch.Tensor:
        costs.call()
        if fails:
            raise KeyError("of the program")
        return x * 2

    fast = tracer_core.compile(program, backend=counting(costs))
    for n in range(4 * ENOUGH):
        if n % 3 == 0:
            with pytest.raises(KeyError, match="of the program"):
                fast(torch.ones(4), True)
        else:
            assert torch.equal(fast(torch.ones(4), False), torch.full((4,), 2.0))
            calls += 1
    assert verdicts(fast) == [True]
    with pytest.raises(KeyError, match="of the program"):
        fast(torch.ones(4), True)


def test_recursion_goes_one_way_from_the_outermost_call(costs: Costs) -> None:
    def program(x: torch.Tensor, depth: int) -> torch.Tensor:
        costs.call()
        return x if depth == 0 else again(x + depth, depth - 1)

    @tracer_core.disable
    def again(x: torch.Tensor, depth: int) -> Any:
        return fast(x, depth)

    fast = tracer_core.compile(program, backend=counting(costs))
    for _ in range(2 * ENOUGH):
        assert torch.equal(fast(torch.ones(4), 3), torch.full((4,), 7.0))
    assert verdicts(fast) == [True]


def test_a_module_called_with_keywords(costs: Costs) -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor, *, by: int) -> torch.Tensor:
            costs.call()
            self.calls += 1
            return x * by

    module = Scale()
    fast = tracer_core.compile(module, backend=counting(costs))
    for n in range(2 * ENOUGH):
        assert torch.equal(fast(torch.ones(4), by=3), torch.full((4,), 3.0))
        assert module.calls == n + 1
    assert ran(costs, lambda: fast(torch.ones(4), by=3)) == "eager"


def test_random_numbers_are_those_of_an_eager_program(costs: Costs) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        costs.call()
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(4)

    fast = tracer_core.compile(program, backend="inductor")
    x = torch.arange(4.0)
    torch.manual_seed(0)
    actual = [fast(x) for _ in range(2 * ENOUGH)]
    torch.manual_seed(0)
    wanted = [program(x) for _ in range(2 * ENOUGH)]
    assert len(function_behind(fast).verdicts) == 1
    for item, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(item, other)


def test_reset_forgets_what_was_found(costs: Costs) -> None:
    fast = tracer_core.compile(doubling(costs), backend=counting(costs))
    for _ in range(ENOUGH):
        fast(torch.ones(4))
    assert verdicts(fast) == [True]
    tracer_core.reset()
    assert verdicts(fast) == []
    assert ran(costs, lambda: fast(torch.ones(4))) == "compiled"


def test_the_verdict_needs_medians_sums_and_pairs_to_agree() -> None:
    slow, quick = [6.0] * SAMPLES, [5.0] * SAMPLES
    assert verdict(slow, quick, 5.0).native
    assert not verdict(quick, slow, 5.0).native
    # a few eager calls that are much longer: the sums disagree
    assert not verdict(slow, [*quick[:-3], 60.0, 60.0, 60.0], 5.0).native
    # one interruption is none
    assert verdict(slow, [*quick[:-1], 500.0], 5.0).native
    # samples that overlap widely
    mixed = [4.0, 9.0] * (SAMPLES // 2)
    assert not verdict([item + 0.6 for item in mixed], mixed, 5.0).native
    assert statistics.median(slow) == verdict(slow, quick, 5.0).compiled
