"""Tensors with tangents (torch.autograd.forward_ad): compiled programs give eager's tangents."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import tracer_core
from tracer_core.testing import CaptureCounter

X, T = torch.randn(4), torch.randn(4)


def _same(item, other):
    assert (item.tangent is None) == (other.tangent is None)
    torch.testing.assert_close(other.primal, item.primal)
    if item.tangent is not None:
        torch.testing.assert_close(other.tangent, item.tangent)


PROGRAMS = {
    "function": lambda: lambda x: x.sin() * 2 + x.sum(),
    "linear": lambda: nn.Linear(4, 4),
    "two-paths": lambda: lambda x: x * 2 if x.dim() == 1 else x * 3,
    "detached": lambda: lambda x: x.detach() * 2,
}


@pytest.mark.parametrize("before", [False, True], ids=["first", "after-plain-calls"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dual_argument(name, before):
    target = PROGRAMS[name]()
    compiled = tracer_core.compile(target, backend="eager")
    if before:
        compiled(X)
    for _ in range(2):
        with forward_ad.dual_level():
            x = forward_ad.make_dual(X, T)
            _same(forward_ad.unpack_dual(target(x)), forward_ad.unpack_dual(compiled(x)))
    with CaptureCounter() as counter:
        torch.testing.assert_close(compiled(X), target(X))  # a plain call is captured again
        compiled(X)
    assert len(counter.graphs) == (not before)


def test_a_level_inside():
    def derivative(x, t):
        y = x * 3
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(y.sin(), t)
            tangent = forward_ad.unpack_dual(dual * dual.sum()).tangent
        return tangent * 2

    compiled = tracer_core.compile(derivative, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(X, T), derivative(X, T))


def test_a_dual_parameter():
    class Scaled(nn.Module):
        def forward(self, x):
            return x * self.weight

    module = Scaled()
    module.weight = torch.ones(4)
    compiled = tracer_core.compile(module, backend="eager")
    torch.testing.assert_close(compiled(X), X)
    with forward_ad.dual_level():
        module.weight = forward_ad.make_dual(torch.ones(4), T)
        _same(forward_ad.unpack_dual(module(X)), forward_ad.unpack_dual(compiled(X)))


def test_torch_func_around_a_compiled_function():
    def f(x):
        return x * x.sum()

    compiled = tracer_core.compile(f, backend="eager")
    compiled(X)
    for item, other in zip(
        torch.func.jvp(f, (X,), (T,)), torch.func.jvp(compiled, (X,), (T,)), strict=True
    ):
        torch.testing.assert_close(other, item)
    torch.testing.assert_close(torch.func.jacfwd(compiled)(X), torch.func.jacfwd(f)(X))
    torch.testing.assert_close(torch.func.hessian(lambda x: compiled(x).sum())(X),
                               torch.func.hessian(lambda x: f(x).sum())(X))  # fmt: skip
