"""torch.nn.functional.one_hot: one kernel with what is around it, and eager's errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tracer_core.dispatch import compile_graph
from tracer_core.testing import compare
from tracer_core.testing.compare import Tolerance

CLOSE = Tolerance(rtol=1e-5, atol=1e-6)


def routed(x, weight):
    """A router of experts: probabilities times the mask of the chosen ones, and their load."""
    probabilities = (x @ weight).softmax(-1)
    mask = F.one_hot(probabilities.argmax(-1), 6)
    return (probabilities * mask).sum(-1), mask.float().mean((0, 1)), mask


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("learns", [False, True])
def test_a_router(learns, dynamic, monkeypatch):
    actual = []
    monkeypatch.setattr(compile_graph, "report", actual.append)
    torch.manual_seed(0)
    weights = [torch.linspace(-1, 1, 48).reshape(8, 6).requires_grad_(learns) for _ in range(2)]
    fast = tracer_core.compile(routed, dynamic=dynamic)
    for rows in (3, 3, 5, 7):
        x = torch.randn(2, rows, 8)
        results = [value(x, weight) for value, weight in zip((routed, fast), weights, strict=True)]
        compare(*results, path="", tolerance=CLOSE)
        if learns:
            for best, load, _ in results:
                (best.sum() + load.square().sum()).backward()
            compare(*(weight.grad for weight in weights), path="gradient", tolerance=CLOSE)
    assert actual == []


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("shape", [(), (0,), (4,), (3, 2)])
def test_values(shape, classes):
    fast = tracer_core.compile(lambda x: F.one_hot(x, classes) * 2)
    for _ in range(2):
        x = torch.randint(0, classes, shape)
        compare(F.one_hot(x, classes) * 2, fast(x), path="")
        compare(F.one_hot(x.mT, classes) * 2, fast(x.mT), path="") if x.dim() == 2 else None


@pytest.mark.parametrize(
    ("value", "message"), [(5, "smaller than num_classes"), (-1, "non-negative")]
)
def test_what_is_no_class(value, message):
    fast = tracer_core.compile(lambda x: F.one_hot(x, 5) * 2)
    fast(torch.tensor([1, 4]))
    with pytest.raises(RuntimeError, match=message):
        fast(torch.tensor([1, value]))
    compare(F.one_hot(torch.tensor([0, 2]), 5) * 2, fast(torch.tensor([0, 2])), path="")
