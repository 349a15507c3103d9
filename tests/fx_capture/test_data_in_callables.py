"""Values of data in the graphs of callable backends, which a break would make an error."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tests.support.releases import RELEASE
from tracer_core.errors import GraphBreakError
from tracer_core.testing import CountingBackend, compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# Data-dependent values for callable backends


def listed(x):
    lengths = (x > 0).sum(1) + 2
    return x * sum(lengths.tolist())


def rows(x):
    actual = torch.nonzero(x.sum(1) > -100).squeeze(1)
    return x[actual].sum(0) + actual.shape[0]


def counted(x):
    n = (x > -100).sum().item()
    return torch.arange(n).sum() + x.new_zeros(n).sum()


@pytest.mark.parametrize("function", [listed, rows, counted], ids=lambda value: value.__name__)
def test_whole_graphs_of_callables(function):
    backend = CountingBackend()
    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    for x in (X, Y, X + 1):
        compare(function(x), compiled(x))
    assert len(backend.graphs) == 1


FLOATS = {
    "factor": lambda x: x * x.sum().item() + 1,
    "returned": lambda x: (x + 1, x.max().item()),
    "float": lambda x: x + float(x.mean()) - x.half()[0, 0].item(),
    "full": lambda x: torch.full((3, 4), x.sum().item()) + x[0, 0].item(),
    "alpha": lambda x: torch.add(x, x, alpha=x[0, 0].item()).clamp(min=x.mean().item()),
    "whole": lambda x: x.long() * (x.sum() * 0).item(),
}


if RELEASE >= (2, 13):  # fakes of 2.11 and 2.12 ask whether the exponent is 1
    FLOATS["exponent"] = lambda x: torch.full((3, 4), x.sum().item()) ** x[0, 0].item()


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("backend", ["callable", "aten_eager", "inductor"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_data_where_a_break_is_an_error(name, backend):
    function = FLOATS[name]
    counting_backend = CountingBackend() if backend == "callable" else backend
    compiled = tracer_core.compile(function, backend=counting_backend, fullgraph=True)
    for x in (X, Y.abs(), X * 0, X + 1):
        compare(function(x), compiled(x))


def test_gradients_beside_a_float_of_data():
    weight = torch.ones(4, requires_grad=True)

    def f(x):
        return (x * weight * x.mean().item()).sin().sum()

    def gradient(function, x):
        weight.grad = None
        function(x).backward()
        return weight.grad

    compiled = tracer_core.compile(f, backend="inductor", fullgraph=True)
    for x in (X, Y):
        compare(gradient(f, x), gradient(compiled, x))


USES = {
    "branch": lambda x: x + 1 if x.sum().item() > 0 else x,
    "arithmetic": lambda x: x * (x.sum().item() * 2),
    "int": lambda x: x + int(x.sum()),
    "text": lambda x: (x, f"{x.sum().item():.2f}"),
}


@pytest.mark.parametrize("name", USES)
def test_uses_of_a_float_of_data_that_break(name):
    function = USES[name]
    with pytest.raises(GraphBreakError):
        tracer_core.compile(function, backend="eager", fullgraph=True)(X)
    same(function, (X,), (-X.abs(),), breaks=None)


def test_a_branch_on_data_still_breaks():
    compiled = tracer_core.compile(
        lambda x: x + 1 if x.sum().item() > 0 else x, backend=CountingBackend(), fullgraph=True
    )
    with pytest.raises(GraphBreakError):
        compiled(X)
