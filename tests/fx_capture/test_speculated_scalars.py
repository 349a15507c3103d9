"""Integers of tensors that Python needs are, in the first trace, those of the call that is being
captured: one graph, which checks them, and the program in eager mode where a later call has others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from tests.fx_capture.test_profiled_branches import BACKENDS, breaks, captures, noting, runs

pytestmark = pytest.mark.usefixtures("may_leave_graphs")


def spline(t: torch.Tensor, knots: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A piecewise linear curve, as torchcde evaluates it."""
    at = (torch.bucketize(t, knots) - 1).clamp(0, knots.shape[0] - 2)
    share = (t - knots[at]) / (knots[at + 1] - knots[at])
    return values[..., at, :] + share * (values[..., at + 1, :] - values[..., at, :])


@pytest.mark.parametrize("backend", BACKENDS)
def test_elements_at_the_places_of_the_call(backend: Any) -> None:
    knots, values = torch.linspace(0, 1, 6), torch.randn(2, 6, 3)
    fast = tracer_core.compile(spline, backend=backend())
    times = [0.3, 0.35, 0.31, 0.9, 0.32, 0.0]
    for t in times:
        inputs = torch.tensor(t), knots, values
        torch.testing.assert_close(fast(*inputs), spline(*inputs))
    assert breaks(fast) == 0 and captures(fast) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_that_differ_in_each_call_settle(backend: Any) -> None:
    fast = tracer_core.compile(spline, backend=backend())
    knots, values = torch.linspace(0, 1, 30), torch.randn(2, 30, 3)
    actual = []
    for n in range(120):
        inputs = torch.tensor(n % 30 / 30 + 0.01), knots, values
        torch.testing.assert_close(fast(*inputs), spline(*inputs))
        actual.append(captures(fast))
    assert actual[-1] == actual[60] < 20


def test_one_graph_runs_a_call() -> None:
    fast = tracer_core.compile(spline, backend=noting())
    inputs = torch.tensor(0.3), torch.linspace(0, 1, 6), torch.randn(2, 6, 3)
    assert [runs(lambda: fast(*inputs)) for _ in range(3)] == [1] * 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_and_effects(backend: Any) -> None:
    net = torch.nn.Linear(3, 2).double()

    def program(x: torch.Tensor, log: dict[str, int]) -> torch.Tensor:
        best = x.sum(-1).argmax()
        log["calls"] += 1
        return net(x[best]).sum() + (x[best] * x[best - 1]).sum()

    fast = tracer_core.compile(program, backend=backend())
    logs = {"calls": 0}, {"calls": 0}
    for n in range(12):
        x = torch.randn(4, 3).double()
        x[2 if n % 5 else 1] += 100
        actual = []
        for call, log in zip((program, fast), logs, strict=True):
            inputs = x.clone().requires_grad_()
            net.zero_grad()
            loss = call(inputs, log)
            loss.backward()
            actual.append((loss.detach(), inputs.grad, net.weight.grad, net.bias.grad))
        torch.testing.assert_close(actual[1], actual[0])
        assert logs[0] == logs[1]


def test_elements_are_views_as_in_eager() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.relu()[at * 1]

    fast = tracer_core.compile(program, backend="inductor")
    for n in (1, 1, 0, 1):
        x, at = torch.randn(4, 3), torch.tensor(n)
        got, want = fast(x, at), program(x, at)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()

    def view(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[:, at + 1]

    fast = tracer_core.compile(view, backend="inductor")
    for n in (1, 1, 0, 1):
        x, at = torch.randn(4, 3), torch.tensor(n)
        got = fast(x, at)
        got += 1
        assert torch.equal(x[:, n + 1], got)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_places_raise_as_in_eager(backend: Any) -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at + 1] * 2

    fast = tracer_core.compile(program, backend=backend())
    x = torch.randn(3)
    for n in (0, 7, 1, 9, 0):
        try:
            want: Any = program(x, torch.tensor(n))
        except IndexError as error:
            with pytest.raises(IndexError, match=str(error).partition("(")[0]):
                fast(x, torch.tensor(n))
        else:
            torch.testing.assert_close(fast(x, torch.tensor(n)), want)


def test_bytes_and_truths_are_masks() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at]

    for dtype in (torch.uint8, torch.bool):
        fast = tracer_core.compile(program, backend=noting())
        for n in (1, 0):
            inputs = torch.randn(3), torch.tensor(n, dtype=dtype)
            assert torch.equal(fast(*inputs), program(*inputs))


def test_a_list_of_layers_is_indexed() -> None:
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))

    def program(x: torch.Tensor) -> torch.Tensor:
        best = int(x.sum(0).argmax())
        return layers[best](x) + [1, 2, 3][best]

    fast = tracer_core.compile(program, backend="inductor")
    for n in (0, 0, 1, 0, 2, 0):
        x = torch.randn(5, 3)
        x[:, n] += 50
        torch.testing.assert_close(fast(x), program(x))
    assert breaks(fast) == 0 and captures(fast) == 1


def test_numbers_are_compared() -> None:
    def program(x: torch.Tensor, low: torch.Tensor) -> Any:
        first, last = int(low.min()), low.max().item()
        if first < 0:
            x = x + 1
        if last - first >= 3 or last == 7:
            x = x * 2
        return x, first

    fast = tracer_core.compile(program, backend="inductor")
    for low in ([1, 2], [0, 1], [2, 4], [-3, 4], [1, 2], [7, 7], [0, 9], [-1, 7]):
        inputs = torch.randn(3), torch.tensor(low)
        (got, number), (want, wanted) = fast(*inputs), program(*inputs)
        torch.testing.assert_close(got, want)
        assert number == wanted and type(number) is int
    assert captures(fast) >= 1
    fast = tracer_core.compile(program, backend="inductor")
    fast(torch.randn(3), torch.tensor([1, 2]))
    fast(torch.randn(3), torch.tensor([2, 4]))
    assert breaks(fast) == 0 and captures(fast) == 1


def test_sizes_that_depend_on_data_are_compared() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        if y.shape[0] == 3:
            y = y * y.flip(0)
        return torch.stack([y.sum(), y.exp().mean()])

    fast = tracer_core.compile(program, backend="inductor")
    for n in (3, 3, 2, 5, 3, 2, 4, 3, 7, 2, 3):
        x = torch.cat([torch.rand(n) + 0.1, -torch.rand(3)])[torch.randperm(n + 3)]
        torch.testing.assert_close(fast(x), program(x))


def test_random_places() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        top = torch.randint(0, 5, (1,)).item()
        assert top >= 0
        part = x[top : top + 4] if top + 4 <= x.shape[0] else x[:4]
        return part * torch.rand(4)

    fast = tracer_core.compile(program, backend="inductor")
    for n in range(20):
        x, results, states = torch.randn(9), [], []
        for call in (program, fast):
            torch.manual_seed(n)
            results.append(call(x))
            states.append(torch.get_rng_state())
        torch.testing.assert_close(results[0], results[1])
        assert torch.equal(*states)


def test_many_numbers_are_no_longer_foreseen() -> None:
    def program(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(())
        for item in order:
            total = total * 0.9 + x[item + 0]
        return total

    fast = tracer_core.compile(program, backend=noting())
    for n in (4, 300):
        x = torch.randn(n)
        for _ in range(2):
            order = torch.arange(n)
            torch.testing.assert_close(fast(x, order), program(x, order))


def test_writes_to_inputs() -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = x[at + 1] * 2
        x[at + 1] = 5
        return y + x[at]

    fast = tracer_core.compile(program, backend="inductor")
    for n in (0, 1, 0, -1):
        item, other = torch.arange(3.0), torch.arange(3.0)
        at = torch.tensor(n)
        torch.testing.assert_close(fast(item, at), program(other, at))
        assert torch.equal(item, other)
