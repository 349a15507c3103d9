"""Branches on tensors go on, in the first trace, the way that the call being captured goes: one
graph, which checks it, and the program in eager mode where a later call goes another way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer_core
from tests.fx_capture.test_profiled_branches import BACKENDS, breaks, captures, inner, noting, runs
from tracer_core.fx_capture import speculated_values
from tracer_core.trace import assertions

pytestmark = pytest.mark.usefixtures("may_leave_graphs")


def kinked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x * 2
    if z.sum() > 0:
        z = z + y
    if torch.equal(x, y) or all((part > -5).all() for part in z.unbind()):
        z = z * 3
    return z.sin() if any(torch.equal(z, value) for value in (x, y)) else z.cos()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_from_the_first_call_on(backend: Any) -> None:
    fast = tracer_core.compile(kinked, backend=backend())
    x, y = torch.rand(3) + 0.1, torch.randn(3)
    for value in ((x, y), (x + 1, y), (-x, y), (x, x.clone()), (x, y - 9), (x, y)):
        torch.testing.assert_close(fast(*value), kinked(*value))
    assert breaks(fast) == 0 and captures(fast) == 1


def test_one_graph_runs_a_call() -> None:
    fast = tracer_core.compile(kinked, backend=noting())
    x, y = torch.rand(3) + 0.1, torch.randn(3)
    assert [runs(lambda: fast(x, y)) for _ in range(3)] == [1] * 3


def test_a_branch_that_goes_both_ways_ends_the_graph_and_the_others_do_not() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x + 1 if x[0] > 0 else x - 1
        x = x.sin() if x[1] > 0 else x.cos()
        return x * 2 if x[2] > -9 else x / 2

    fast = tracer_core.compile(program, backend=noting())
    counts = []
    for n in range(40):
        x = torch.tensor([1.0, 1.0 if n % 2 else -1.0, 0.0])
        torch.testing.assert_close(fast(x), program(x))
        counts.append(runs(lambda x=x: fast(x)))
    assert counts[0] == 1 and counts[-1] == counts[-2] > 1
    assert captures(fast) < 12  # it settles


def test_programs_that_are_told_to_be_whole_or_have_options_do_not_foresee() -> None:
    with pytest.raises(tracer_core.errors.GraphBreakError):
        tracer_core.compile(kinked, backend=noting(), fullgraph=True)(torch.ones(3), torch.ones(3))
    fast = tracer_core.compile(kinked, backend="eager")
    fast(torch.ones(3), torch.ones(3))
    assert breaks(fast) > 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers(backend: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        noise = torch.rand(4)
        y = torch.nn.functional.dropout(x, 0.5)
        if noise.sum() > 2:
            y = y + torch.randn(4)
        if y.sum() > torch.rand(()):
            y = y * noise
        return y, torch.rand(2)

    fast = tracer_core.compile(program, backend=backend())
    for n in range(12):
        results, states = [], []
        for call in (program, fast):
            torch.manual_seed(n)
            results.append(call(torch.ones(4)))
            states.append(torch.get_rng_state())
        torch.testing.assert_close(results[0], results[1])
        assert torch.equal(*states)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_effects(backend: Any) -> None:
    net, seen = torch.nn.Linear(3, 2).double(), []

    def program(x: torch.Tensor, log: dict[str, int]) -> torch.Tensor:
        y = net(x)
        loss = y.pow(2).mean()
        log["calls"] += 1
        if loss > 100:
            seen.append("steep")
            loss = loss.sqrt()
        return loss + y.sum()

    fast = tracer_core.compile(program, backend=backend())
    logs = {"calls": 0}, {"calls": 0}
    for n in range(10):
        x = torch.randn(4, 3).double() * (1e3 if n % 4 == 3 else 1)
        actual = []
        for call, log in zip((program, fast), logs, strict=True):
            seen.clear()
            inputs = x.clone().requires_grad_()
            net.zero_grad()
            loss = call(inputs, log)
            loss.backward()
            grads = inputs.grad, net.weight.grad, net.bias.grad
            actual.append((loss.detach(), *grads, torch.tensor(len(seen))))
        torch.testing.assert_close(actual[1], actual[0])
        assert logs[0] == logs[1]


def test_writes_to_intermediates_and_to_inputs() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.mul_(2)
        y[0] = 7
        if y.sum() > 3:
            y.add_(1)
        return y

    def outside(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        if x.sum() > 3:
            return x * 2
        return x.add_(5)

    for program, count in ((inside, 0), (outside, 1)):
        fast = tracer_core.compile(program, backend=noting())
        for value in (1.0, 2.0, -3.0, 1.0):
            item, other = torch.full((3,), value), torch.full((3,), value)
            torch.testing.assert_close(fast(item), program(other))
            assert torch.equal(item, other)
        assert breaks(fast) == count


def test_loops_that_follow_data_are_not_unrolled() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        steps = 0
        while x.abs().max() > 1e-2:
            x, steps = x / 1.5, steps + 1
        return x, steps

    fast = tracer_core.compile(program, backend=noting())
    for n in range(5):
        x = torch.full((2,), float(2 ** (n + 3)))
        (want, wanted), (got, steps) = program(x), fast(x)
        assert steps == wanted
        torch.testing.assert_close(got, want)
    assert breaks(fast) > 0


_CALLS: list[int] = []


@torch.library.custom_op("speculated::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    _CALLS.append(1)
    return x * 2


@counted.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_program_s_own_operators_run_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = counted(x)
        return y + 1 if y.sum() > 0 else y

    fast = tracer_core.compile(program, backend=noting())
    for number in range(1, 4):
        torch.testing.assert_close(fast(torch.ones(2)), torch.full((2,), 3.0))
        assert len(_CALLS) == number
    _CALLS.clear()


def test_large_intermediates_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.expand(100, 3) * 2
        return y + 1 if y.sum() > 0 else y

    for most, count in ((1205, 0), (1204, 1)):
        monkeypatch.setattr(speculated_values, "MAX_SPECULATION_BYTES", most)
        fast = tracer_core.compile(program, backend=noting())
        torch.testing.assert_close(fast(torch.ones(3)), program(torch.ones(3)))
        assert breaks(fast) == count


def test_an_operator_that_fails_on_the_values_raises_as_in_eager() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = x[at]
        return y + 1 if y.sum() > 0 else y

    fast = tracer_core.compile(program, backend=noting())
    x = torch.ones(3)
    for at in ([0, 9], [0, 1], [0, 9], [2, 2]):
        inputs = x, torch.tensor(at)
        if 9 in at:
            with pytest.raises(IndexError, match="index 9 is out of bounds"):
                fast(*inputs)
        else:
            torch.testing.assert_close(fast(*inputs), program(*inputs))


def test_flags_of_modules_stay_guarded() -> None:
    class Once(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ready", torch.tensor(False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            if not self.ready:
                y = y + 1
            return y if y.sum() > 0 else -y

    net = Once()
    fast = tracer_core.compile(net, backend=noting())
    for ready, sign in itertools.product((False, True, False), (1.0, -3.0)):
        net.ready.fill_(ready)
        x = torch.full((3,), sign)
        torch.testing.assert_close(fast(x), net(x))


@pytest.mark.parametrize(
    "ask", [bool, lambda t: not t, lambda t: t and True, lambda t: 1 if t else 0]
)
def test_each_way_to_ask(ask: Callable[[Any], Any]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return x * 2, ask(x.sum() > 0)

    fast = tracer_core.compile(program, backend=noting())
    for value in (1.0, 2.0, -1.0):
        got, want = fast(torch.full((2,), value)), program(torch.full((2,), value))
        torch.testing.assert_close(got[0], want[0])
        assert got[1] is want[1] or torch.equal(got[1], want[1])


def test_tensors_of_inference_mode() -> None:
    @torch.inference_mode()
    def counted(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x > 0).sum(1), (x <= 0).sum(1)

    def program(x: torch.Tensor) -> torch.Tensor:
        above, below = counted(x)
        share = above.sum() / (above.sum() + below.sum())
        return share * 2 if torch.any(above > 1) else share

    for backend in ("eager", "inductor", noting()):
        fast = tracer_core.compile(program, backend=backend)
        for sign in (1, -1, 1):
            x = torch.arange(6.0).reshape(2, 3) * sign
            torch.testing.assert_close(fast(x), program(x))
        assert breaks(fast) == (backend == "eager")
        assert all("failed" not in record.kind for record in inner(fast).breaks)


def test_a_long_loop_is_not_followed_and_no_later_region_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text generation: checks of the arguments, then a model call a token until all texts end."""
    reached: list[str] = []
    monkeypatch.setattr(assertions, "crossed", lambda limit: reached.append(limit))

    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(70):
            x = (x * 1.01).clamp(max=10)
        return x

    def generate(x: torch.Tensor) -> torch.Tensor:
        if torch.isnan(x).any():
            raise_later = True
        else:
            raise_later = False
        x = x + 1 if (x > -5).all() else x - 1
        ended = False
        while not ended:
            x = model(x)
            ended = bool(x.max() > 9)
        return x * 0 if raise_later else x

    fast = tracer_core.compile(generate, backend=noting())
    for n in range(8):
        x = torch.rand(3) + n / 10
        torch.testing.assert_close(fast(x), generate(x))
    assert reached == ["MAX_SPECULATED_LOOP_NODES"]


def test_the_layers_of_a_model_are_no_long_loop() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            for _ in range(70):
                x = (x * 1.01).clamp(max=10)
            if torch.isinf(x).any():
                x = x.clamp(-100, 100)
        return x

    fast = tracer_core.compile(program, backend=noting())
    for n in range(3):
        x = torch.rand(3) + n
        torch.testing.assert_close(fast(x), program(x))
    assert breaks(fast) == 0 and captures(fast) == 1
