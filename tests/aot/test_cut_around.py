"""One operator without a functional form never makes a graph eager: what stands before and after it
is compiled, and it runs eagerly in its place."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.comparison import assert_same

torch.manual_seed(0)
W, X = torch.randn(16, 16) / 4, torch.randn(6, 16)


def noise(like):
    """Random numbers in memory with gaps, whose functional form draws in another order."""
    zero = torch.zeros(like.shape[0], 2 * like.shape[1])[:, ::2]
    zero.normal_()
    return zero


def once(x, w):
    y = (x @ w).sin() * 2
    return ((y + noise(y)) @ w).cos().sum(0)


def at_the_beginning(x, w):
    return (x + noise(x)) @ w


def at_the_end(x, w):
    y = x @ w
    return y, noise(y)


def several(x, w):
    for _ in range(3):
        x = torch.tanh(x @ w)
        x = x + 0.1 * noise(x)
    return x


def too_many(x, w):
    for _ in range(12):
        x = torch.tanh(x @ w)
        x = x + 0.1 * noise(x)
    return x


def between_draws(x, w):
    y = torch.dropout(x @ w, 0.5, True)
    y = y + noise(y)
    return y * torch.rand_like(y)


def of_a_view(x, w):
    y = (x @ w).detach().clone()
    rows = y[:, ::2]
    rows.normal_()
    return y + x, rows * 2


PROGRAMS = [once, at_the_beginning, at_the_end, several, too_many, between_draws, of_a_view]


def fallbacks_of(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


def graphs_of(compiled):
    records = tracer_core.last_compile(compiled)
    return [record.graph for record in records if record.name == "compile"]


def outcome(function, *args):
    torch.manual_seed(2)
    actual = function(*args)
    return actual if isinstance(actual, tuple) else (actual,)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_inference(program, backend):
    fast = tracer_core.compile(program, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            assert_same(outcome(fast, X, W), outcome(program, X, W))
    assert "normal_ runs eagerly" in fallbacks_of(fast)[-1]
    assert graphs_of(fast)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program, backend):
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    fast = tracer_core.compile(program, backend=backend)
    for _ in range(2):
        results = [outcome(function, x, w) for function in (fast, program)]
        assert_same(*results)
        sums = [sum(item.square().sum() for item in result) for result in results]
        slopes = (torch.autograd.grad(item, (x, w), allow_unused=True) for item in sums)
        assert_same(*slopes, rtol=1e-4, atol=1e-4)
    assert any("_backward" in name for name in graphs_of(fast))


def test_symbolic_sizes():
    fast = tracer_core.compile(once, dynamic=True)
    for size in (6, 9):
        x = torch.randn(size, 16)
        assert_same(outcome(fast, x, W), outcome(once, x, W))
    assert len(set(graphs_of(fast))) == 2


def test_inputs_are_written_in_order():
    def count(x, total, steps):
        steps.add_(1)
        total.mul_(0.5).add_(x.mean(0))
        result = x + noise(x) * steps
        total.add_(result.sum(0))
        return result * total

    states = [[torch.zeros(16), torch.zeros(())] for _ in range(2)]
    fast = tracer_core.compile(count, backend="aten_eager")
    for _ in range(3):
        assert_same(outcome(fast, X, *states[0]), outcome(count, X, *states[1]))
        assert_same(*states)


@pytest.mark.parametrize("place", ["forward", "update"])
def test_a_whole_step(place):
    """In the forward the gradients run through what is compiled; in the update they are computed in
    the compiled part before it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x):
            x = torch.tanh(self.first(x))
            return self.last(x + noise(x) if place == "forward" else x)

    def step(net, x):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                shift = noise(parameter) if place == "update" and parameter.dim() == 2 else 0
                parameter.sub_(0.1 * (parameter.grad + shift))
        return loss.detach()

    nets = [Net()]
    nets.append(copy.deepcopy(nets[0]))
    fast = tracer_core.compile(step, backend="aten_eager")
    for _ in range(3):
        assert_same(outcome(fast, nets[0], X), outcome(step, nets[1], X), rtol=1e-5, atol=1e-6)
    for parameter, other in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(parameter, other)
        torch.testing.assert_close(parameter.grad, other.grad)
    assert graphs_of(fast)


def test_an_operator_whose_fake_is_wrong(monkeypatch):
    """What comes after it is compiled for other strides, so it runs eagerly."""
    library = torch.library.Library("split_around", "DEF")
    library.define("turned(Tensor x) -> Tensor")
    library.impl("turned", lambda x: x.t().contiguous().t(), "CPU")

    @torch.library.register_fake("split_around::turned", lib=library)
    def _(x):
        return torch.empty(x.shape)

    def program(x, w):
        result = torch.ops.split_around.turned(x @ w)
        return result.reshape(-1) * 2 + noise(result).sum()

    fast = tracer_core.compile(program, backend="inductor")
    monkeypatch.delenv("TRACER_STRICT")
    for _ in range(2):
        assert_same(outcome(fast, X, W), outcome(program, X, W))
    library._destroy()


def test_tensors_that_get_other_sizes_are_not_handed_between_parts():
    def resized(a, b):
        small = torch.zeros(0)
        return torch.kron(a, b, out=small) + 1, small

    def transposed(x, w):
        y = (x @ w).sin()
        y.t_()
        return y + noise(y), y

    for program, inputs in ((resized, (X[:2], W[:3])), (transposed, (X, W))):
        fast = tracer_core.compile(program)
        for _ in range(2):
            assert_same(outcome(fast, *inputs), outcome(program, *inputs))
