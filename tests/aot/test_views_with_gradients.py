"""Graphs of which only views of inputs require a gradient: eager makes the views, what else the
graph computes is compiled."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.torch_private.memory_layout import same_strides


def only_a_view(x, y):
    return x.t()[1:]


def beside_others(x, y):
    return x.t(), (y @ y.t()).sin(), x.detach().exp(), x.unsqueeze(0)


def the_input_itself(x, y):
    return x, x.detach() * 2, y.cos()


def views_without_history(x, y):
    with torch.no_grad():
        apart = x.t()
        result = (x * 2).sin()
    return apart, result, x[0], x.detach()[1]


def with_a_write(x, y):
    y.add_(x.detach())
    return x[0], y.sum()


def of_a_computed_one(x, y):
    z = (y * 2).requires_grad_()
    return z, x[0]


PROGRAMS = [
    only_a_view,
    beside_others,
    the_input_itself,
    views_without_history,
    with_a_write,
    of_a_computed_one,
]


def outcome(function, grad=True):
    torch.manual_seed(0)
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    with torch.set_grad_enabled(grad):
        actual = function(x, y)
    actual = actual if isinstance(actual, tuple) else (actual,)
    flags = [(item.requires_grad, item._is_view(), item.is_leaf) for item in actual]
    sharing = [item.data_ptr() == x.data_ptr() for item in actual]
    loss = [item.square().sum() for item in actual if item.requires_grad and not item.is_leaf]
    if loss:
        sum(loss).backward()
    return actual, flags, sharing, x.grad, y


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_history_and_memory(program, backend):
    fast = tracer_core.compile(program, backend=backend)
    for grad in (True, False, True):
        (actual, *rest), (expected, *others) = outcome(fast, grad), outcome(program, grad)
        for item, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(item, other)
            assert same_strides(item, other)
        (flags, sharing, slope, y), (flags2, sharing2, slope2, y2) = rest, others
        assert [flag[0] for flag in flags] == [item[0] for item in flags2]
        assert sharing == sharing2
        torch.testing.assert_close((slope, y), (slope2, y2))
    if program is not of_a_computed_one:
        assert not [item for item in tracer_core.last_compile(fast) if item.name == "fallback"]


def test_a_write_through_the_view_is_seen_by_autograd():
    fast = tracer_core.compile(lambda x: (x[0], x.detach().sum()), backend="aten_eager")
    x = torch.randn(3, 4, requires_grad=True)
    base = x * 1
    row, total = fast(base)
    row.mul_(3)
    base.sum().backward()
    assert torch.equal(x.grad, torch.tensor([3.0, 1, 1]).unsqueeze(1).expand(3, 4))
