"""``backend="auto"`` and lists: what trials must not do twice, what may change meanwhile, and how
times are compared.
"""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
import torch

import tracer_core
from tests.support.callable_backends import eager_graph
from tracer_core.autoselect import selection, timing
from tracer_core.autoselect.alternating_rounds import AlternatingRounds
from tracer_core.background import worker

heard: list[str] = []


@torch.library.custom_op("auto_tests::loud", mutates_args=())
def loud(x: torch.Tensor) -> torch.Tensor:
    heard.append("loud")
    return x + 1


@loud.register_fake
def _(x):
    return torch.empty_like(x)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        heard.append("backward")
        return gradient * 2


class LoudInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.ops.auto_tests.loud(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@tracer_core.allow_in_graph
def opaque(x):
    heard.append("opaque")
    return x * 3


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "cache"))
    heard.clear()


def other(gm, example_inputs):
    return gm.forward


def decided(fast):
    (choice,) = fast.choices(wait=60)
    assert choice.decided
    return choice


def statuses(choice):
    return {row.name: row.status for row in choice.rows}


def direct(x):
    return torch.ops.auto_tests.loud(x) * 2


def in_a_branch(x):
    return torch.cond(x.sum() > 0, lambda y: torch.ops.auto_tests.loud(y), lambda y: y * 2, (x,))


def in_a_forward(x):
    return LoudInside.apply(x) + 1


def marked(x):
    return opaque(x) + 1


@pytest.mark.parametrize("program", [direct, in_a_branch, in_a_forward, marked])
@pytest.mark.parametrize("wait", [True, False])
def test_code_of_the_program_runs_once_a_call(program, wait):
    fast = tracer_core.compile(program, backend=[eager_graph, "inductor"], options={"wait": wait})
    x = torch.ones(3)
    with torch.no_grad():
        # the first call of a graph with operators of other libraries compares them with their fakes
        for _ in range(2):
            torch.testing.assert_close(fast(x), program(x))
        choice = decided(fast)
        heard.clear()
        torch.testing.assert_close(fast(x), program(x))
    assert len(heard) == 2  # ours and eager's
    assert choice.chosen == "eager"
    assert set(statuses(choice).values()) == {"not tried", "chosen"}
    name = "opaque" if program is marked else "auto_tests::loud"
    assert name in choice.row("eager").detail and "repeatable=" in choice.row("eager").detail


def test_a_first_call_runs_a_custom_operator_once():
    fast = tracer_core.compile(direct, backend=[eager_graph, other], options={"wait": True})
    fast(torch.ones(3))
    assert heard == ["loud"]


def test_a_backward_of_the_programs_runs_once_a_step():
    def program(x):
        return Twice.apply(x).sum()

    fast = tracer_core.compile(program, backend=[eager_graph, other], options={"wait": True})
    x = torch.ones(3, requires_grad=True)
    for number in range(3):
        fast(x).backward()
        assert heard == ["backward"] * (number + 1)
    assert torch.equal(x.grad, torch.full((3,), 6.0))
    assert "Twice" in decided(fast).row("eager").detail
    with (
        torch.no_grad()
    ):  # without gradients its forward was followed: nothing in it can be noticed
        fast(x)
    assert statuses(fast.choices(wait=60)[-1])["eager_graph"] in ("chosen", "slower")


def test_what_the_user_calls_repeatable_is_tried():
    for names in (("auto_tests",), ("auto_tests::loud",)):
        options = {"wait": True, "repeatable": names, "remember": False}
        fast = tracer_core.compile(direct, backend=[eager_graph], options=options)
        for _ in range(2):
            torch.testing.assert_close(fast(torch.ones(3)), torch.full((3,), 4.0))
        assert statuses(decided(fast))["eager_graph"] in ("chosen", "slower")
    with pytest.raises(tracer_core.errors.OptionError, match="repeatable"):
        tracer_core.compile(direct, backend="auto", options={"repeatable": "auto_tests"})


def test_operators_of_torch_are_nobodys_own_code():
    def program(x):
        y = torch.ops.aten.sin.default(x).relu() @ x
        return torch.utils.checkpoint.checkpoint(
            lambda z: torch.nn.functional.gelu(z), y, use_reentrant=False
        )

    fast = tracer_core.compile(program, backend=[eager_graph], options={"wait": True})
    x = torch.randn(3, 3, requires_grad=True)
    torch.testing.assert_close(fast(x), program(x))
    assert statuses(decided(fast))["eager_graph"] in ("chosen", "slower")


@pytest.mark.parametrize("write", ["in place", "through .data", "load_state_dict"])
def test_weights_may_change_under_no_grad_while_candidates_are_tried(write):
    begun, changed = threading.Event(), threading.Event()

    def second(gm, example_inputs):  # the first was compared with eager by now
        begun.set()
        assert changed.wait(60)
        return gm.forward

    def wrong(gm, example_inputs):
        return lambda *inputs: tuple(value + 1 for value in gm.forward(*inputs))

    model = torch.nn.Linear(3, 2)
    fast = tracer_core.compile(model, backend=[eager_graph, second, wrong])
    x = torch.randn(5, 3)
    with torch.no_grad():
        fast(x)
        assert begun.wait(60)
        if write == "in place":
            model.weight.mul_(3)
        elif write == "through .data":
            model.weight.data.mul_(3)
        else:
            model.load_state_dict({name: value * 3 for name, value in model.state_dict().items()})
        changed.set()
        choice = decided(fast)
        actual = statuses(choice)
        assert actual.pop("wrong") == "wrong", str(choice)
        assert set(actual.values()) <= {"chosen", "slower"}, str(choice)
        torch.testing.assert_close(fast(x), model(x))


def test_weights_that_never_rest_are_named():
    model = torch.nn.Linear(3, 2)

    def moves(gm, example_inputs):
        def run(*inputs):
            with torch.no_grad():
                model.weight.data.add_(1)
            return gm.forward(*inputs)

        return run

    fast = tracer_core.compile(model, backend=[moves], options={"wait": True})
    with torch.no_grad():
        fast(torch.randn(5, 3))
    assert "changed during each" in decided(fast).row("moves").detail


def test_threads_take_turns_more_often_while_candidates_compile():
    before, seen = sys.getswitchinterval(), []

    def candidate(gm, example_inputs):
        seen.append(sys.getswitchinterval())
        return gm.forward

    fast = tracer_core.compile(lambda x: x + 1, backend=[candidate])
    fast(torch.ones(2))
    decided(fast)
    assert seen == [pytest.approx(worker.INTERVAL)] and before > worker.INTERVAL
    for thread in threading.enumerate():
        if thread.name == "tracer-background":
            thread.join(60)
    assert sys.getswitchinterval() == before


class Scripted:
    """A sample whose runs take what the runner says."""

    def seconds(self, runner):
        return runner()


def test_times_are_medians_of_turns():
    def repeating(*values):
        return itertools.cycle(values).__next__

    steady, lucky, hopeless = (
        repeating(1e-3),
        repeating(1.2e-3, 1.2e-3, 1.2e-3, 1e-4),
        repeating(1.0),
    )
    times = timing.timed(Scripted(), [steady, lucky, hopeless], AlternatingRounds(), 0.05)
    assert times.ms(0) == pytest.approx(1.0) and times.ms(1) == pytest.approx(
        1.2
    )  # not the least: that is luck
    assert times.ratio(1, 0) == pytest.approx(1.2)
    assert len(times.turns[2]) == 1 and len(times.turns[0]) >= 3


def _additions(x):
    for _ in range(10):
        x = x + 1
    return x


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        # eager and a; eager, b and a; then all that are close. The earlier one is kept where they
        # are level.
        ([(10.0, 1.0), (10.0, 0.99, 1.0), (10.0, 1.0, 0.99)], "eager_graph"),
        # b looked better only once
        ([(10.0, 1.0), (10.0, 0.9, 1.0), (10.0, 1.0, 0.99)], "eager_graph"),
        ([(10.0, 1.0), (10.0, 0.9, 1.0), (10.0, 1.0, 0.9)], "other"),
        # level with eager, after all
        ([(1.0, 0.9), (1.0, 0.95, 0.9), (1.0, 0.99, 1.02)], "eager"),
    ],
)
def test_near_ties_go_to_the_earlier_one(monkeypatch, measured, chosen):
    script = iter(measured)

    def scripted(sample, runners, turns, seconds):
        row = next(script)
        assert len(row) == len(runners)
        return timing.Times(tuple((item,) for item in row))

    monkeypatch.setattr(selection, "timed", scripted)
    fast = tracer_core.compile(_additions, backend=[eager_graph, other], options={"wait": True})
    x = torch.zeros(3)
    torch.testing.assert_close(fast(x), x + 10)
    choice = decided(fast)
    assert choice.chosen == chosen and next(script, None) is None
    assert [name for name, status in statuses(choice).items() if status == "chosen"] == [chosen]
    torch.testing.assert_close(fast(x), x + 10)
