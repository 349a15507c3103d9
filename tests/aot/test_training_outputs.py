"""Outputs of lowered graphs that share memory, are written to or have no gradient, and programs of
several losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tracer_core

pytestmark = pytest.mark.usefixtures("strict")


def turned(layer, x):
    return layer(x).transpose(0, 1)


def reshaped(layer, x):
    return layer(x).view(2, -1, 6)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("function", [turned, reshaped])
def test_a_result_that_is_a_view_may_be_written_to(function, backend):
    """Wav2Vec2 masks its features after a break: "is a view and is being modified inplace"."""
    layer = nn.Linear(4, 6)
    actual = []
    for run in (function, tracer_core.compile(function, backend=backend)):
        x = torch.arange(16.0).view(4, 4).requires_grad_()
        layer.zero_grad()
        y = run(layer, x)
        y[1] = 0.5
        y.mul_(2)
        y.sin().sum().backward()
        actual.append((y.detach(), y.stride(), x.grad, layer.weight.grad.clone()))
    for eager, ours in zip(*actual, strict=True):
        torch.testing.assert_close(ours, eager)


def halved_in_place(x):
    x = x.detach()
    y = x.exp().clamp(max=3)
    x.mul_(0.5)
    return y, x


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_a_detached_part_is_written_to_at_any_size(backend, caplog):
    """autograd makes the node of a view anew after a write; the sizes were symbolic there."""
    fast = tracer_core.compile(halved_in_place, backend=backend, dynamic=True)
    for size in (3, 5, 7):
        actual = []
        for run in (halved_in_place, fast):
            torch.manual_seed(size)
            base = torch.randn(size, 4, requires_grad=True)
            y, x = run(base[1:])
            actual.append((y, x, base.detach(), x.requires_grad))
        for eager, ours in zip(*actual, strict=True):
            torch.testing.assert_close(ours, eager)
    assert "internal error" not in caplog.text


def test_a_result_written_to_keeps_its_gradient():
    """Eager refuses the backward, which reads what was written to; here the backward has its own
    copy.
    """
    layer = nn.Linear(4, 6)

    def squares(x):
        y = layer(x)
        return y.t(), (y * y).sum()

    x = torch.randn(4, 4)
    expected = torch.autograd.grad(squares(x)[1], layer.weight)
    y, total = tracer_core.compile(squares, backend="aten_eager")(x)
    y.mul_(2)
    torch.testing.assert_close(torch.autograd.grad(total, layer.weight), expected)


# -- outputs that share memory, of which some require grad --


def _leaf():
    return torch.arange(12.0).view(3, 4).div(7).requires_grad_()


def _detached_first(x):
    y = x.sigmoid()
    return y.detach(), y, x * 2


def _a_detached_part_first(x):
    y = x.sigmoid()
    return y.detach()[1], y.view(-1), y


def _parts_alone(x):
    y = x.sigmoid()
    return y.detach()[0], y[1:]


def _a_new_leaf(x):
    y = x.sigmoid()
    z = y.detach().requires_grad_()
    return z, y, z * 2


def _a_view_under_no_grad(x):
    y = x.sigmoid()
    with torch.no_grad():
        part = y[1:]
    return part, y, x * 2


def _views_of_inputs(a, b):
    return a.view(-1), b[0], a.sin()


SHARED = {
    "detached first": (_detached_first, lambda: (_leaf(),)),
    "a detached part first": (_a_detached_part_first, lambda: (_leaf(),)),
    "parts alone": (_parts_alone, lambda: (_leaf(),)),
    "a new leaf": (_a_new_leaf, lambda: (_leaf(),)),
    "a view under no_grad": (_a_view_under_no_grad, lambda: (_leaf(),)),
    "a detached input first": (
        lambda d, x: (x.view(-1), d.sin(), x * 3),
        lambda: (lambda x: (x.detach(), x))(_leaf()),
    ),
    "two leaves": (_views_of_inputs, lambda: (lambda x: (x.detach().requires_grad_(), x))(_leaf())),
    "two leaves, the other way": (
        _views_of_inputs,
        lambda: (lambda x: (x, x.detach().requires_grad_()))(_leaf()),
    ),
    "an input and its view": (_views_of_inputs, lambda: (lambda x: (x, x.view(4, 3)))(_leaf() * 2)),
}


@pytest.mark.sweep(keep=13)
@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("name", SHARED)
def test_outputs_that_share_memory_keep_their_own_gradients(name, backend):
    function, make = SHARED[name]
    fast = tracer_core.compile(function, backend=backend)

    def step(fn):
        inputs = make()
        for value in inputs:
            if value.requires_grad:
                value.retain_grad()
        results = fn(*inputs)
        weighed = [
            (result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum()
            for result in results
            if result.requires_grad
        ]
        sum(weighed).backward()
        messages = [
            (item.requires_grad, item.is_leaf, item.shape, item.stride(), item.storage_offset())
            for item in results
        ]
        shared = [
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
            for a in results
            for b in (*results, *inputs)
        ]
        return (
            messages,
            shared,
            [value.grad for value in inputs],
            [result.grad for result in results if result.is_leaf],
            results,
        )

    for _ in range(2):
        (*said, grads, leaves, results), (*wanted_said, wanted, wanted_leaves, wanted_results) = (
            step(fast),
            step(function),
        )
        assert said == wanted_said
        torch.testing.assert_close((grads, leaves), (wanted, wanted_leaves))
        torch.testing.assert_close(results, wanted_results)


class _GivesNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_a_node_after_the_graph_gives_no_gradient(backend):
    """Autograd then runs the graph's backward all the same."""
    fast = tracer_core.compile(lambda x: torch.sin(x) * 2, backend=backend)
    for _ in range(2):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        (_GivesNone.apply(fast(x)) + fast(y)).sum().backward()
        assert x.grad is None
        torch.testing.assert_close(y.grad, 2 * torch.cos(y))


# -- several losses, of which a program differentiates some --


class _AddsOne(torch.autograd.Function):
    """A backward that gives something for a gradient of zeros."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 + 1


class _GivesOnes(_AddsOne):
    @staticmethod
    def backward(ctx, grad):
        return torch.ones(3)


class _SeesWhichAreThere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, item, other):
        return (0 if item is None else item * 2) + (torch.ones(3) if other is None else other * 3)


def _hooked(x):
    y = x * 3
    y.register_hook(lambda grad: grad + 1)
    return x * 2, y


def _dropped(x):
    return F.dropout(x, 0.5) * 2, F.dropout(x.sqrt(), 0.5)


def _checkpointed(x):
    again = checkpoint(lambda z: F.dropout(z.sqrt(), 0.5).exp(), x, use_reentrant=False)
    return x.sin(), again, x.cos()


LOSSES = {
    "smooth_l1 of NaN": lambda x: (x * 2, F.smooth_l1_loss(x / x, x + 1)),
    "roots of zeros": lambda x: (x * 2, x.sqrt().sum(), (x - 2).sqrt()),
    "signs of zeros": lambda x: (x * -0.0, x * 2),
    "a function that adds one": lambda x: (x * 2, _AddsOne.apply(x)),
    "a function that gives ones": lambda x: (x * 2, _GivesOnes.apply(x)),
    "a function that sees": lambda x: _SeesWhichAreThere.apply(x),
    "a hook": _hooked,
    "dropout": _dropped,
    "a checkpoint": _checkpointed,
    "sizes that one loss shows": lambda x: (x.sum(), x[:, None] * x.expand(2, 3).sum(1)[0]),
    "another input": lambda x: (x[0] * 2, x.sqrt().amax(), x[1:] * 3),
}


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", LOSSES)
def test_outputs_without_a_gradient_take_no_part_in_the_backward(name, backend, fallbacks):
    function = LOSSES[name]
    fast = tracer_core.compile(function, backend=backend)
    count = len(function(torch.ones(3, requires_grad=True)))
    for wanted in [(0,), (1,), range(count), (count - 1, 0), (0,)]:
        grads = []
        for fn in (function, fast):
            torch.manual_seed(0)
            x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
            results = fn(x)
            torch.autograd.backward([results[k].sum() for k in wanted])
            grads.append(x.grad)
        torch.testing.assert_close(grads[1], grads[0], equal_nan=True)
        assert (grads[1] == 0).logical_and(grads[1].signbit() != grads[0].signbit()).sum() == 0
    assert fallbacks == []


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_one_of_two_losses_at_any_size(backend):
    def losses(x, w):
        return (x @ w).square().mean(), (x.sum(0) * w.sum(1)).sqrt() / x.shape[0]

    fast = tracer_core.compile(losses, backend=backend, dynamic=True)
    for rows, wanted in ((3, 0), (5, 1), (4, 0), (7, 1)):
        grads = []
        for fn in (losses, fast):
            torch.manual_seed(rows)
            x, w = (torch.rand(*s, requires_grad=True) for s in ((rows, 6), (6, 2)))
            fn(x, w)[wanted].sum().backward()
            grads.append([x.grad, w.grad])
        torch.testing.assert_close(grads[1], grads[0])
