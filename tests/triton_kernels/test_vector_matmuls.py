"""Matmuls of which one size is 1: a matrix times a vector, sums of columns with weights, outer
products. The last layer of a head with one output has all three in its training step. Run by
Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

import tracer_core
from inductor_backend.ir.nodes import ExternNode
from inductor_backend.ir.target import interpreted
from inductor_backend.lowering import matmul
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import split_reductions
from tests.inductor.test_operators import R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(matmul, "MIN_LOOPED_MATRIX", 64)


def calls(result):
    return [n for n in result.compilation.program.nodes if isinstance(n, ExternNode)]


def mm(a, b):
    return torch.mm(a.sin(), b.cos())


def bmm(a, b):
    return torch.bmm(a.sin(), b.cos())


def addmm(bias, a, b):
    return torch.addmm(bias, a.sin(), b)


LOOPS = {
    "a matrix times a vector": (mm, R(40, 24), R(24, 1)),
    "a vector times a matrix's columns": (mm, R(1, 24), R(40, 24).t()),
    "a vector times a matrix's rows": (mm, R(1, 32), R(32, 24)),
    "columns summed with weights": (mm, R(300, 1).t(), R(300, 8)),
    "the same, on the right": (mm, R(300, 8).t(), R(300, 1)),
    "a batch of rows": (bmm, R(3, 1, 24), R(3, 40, 24).mT),
    "a batch of columns": (bmm, R(3, 1, 300), R(3, 300, 8)),
    "with a bias": (addmm, R(1), R(40, 24), R(24, 1)),
    "with a bias a row": (addmm, R(40, 1), R(40, 24), R(24, 1)),
    "a batch with a bias": (
        lambda bias, a, b: torch.baddbmm(bias, a, b.cos()),
        R(3, 1, 8),
        R(3, 1, 300),
        R(3, 300, 8),
    ),
    "an outer product": (torch.mm, R(40, 1), R(1, 24)),
    "a batch of outer products": (torch.bmm, R(3, 40, 1), R(3, 1, 24)),
    "an outer product and a bias": (F.linear, R(40, 1), R(24, 1), R(24)),
    "a row times a layer's weight": (F.linear, R(1, 24), R(40, 24)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LOOPS)
def test_a_matmul_of_one_row_column_or_term_is_a_loop(name, dtype):
    fn, *inputs = LOOPS[name]
    result = checked(fn, *(x.to(dtype) for x in inputs))
    assert not calls(result)


@pytest.mark.parametrize(
    "why, inputs",
    {
        "nothing to fuse": (R(300, 1).t(), R(300, 8)),
        "two rows": (R(2, 300), R(300, 8)),
        "float64": (R(40, 24).double(), R(24, 1).double()),
        "small": (R(4, 4), R(4, 1)),
    }.items(),
)
def test_other_matmuls_stay_calls(why, inputs):
    assert len(calls(checked(torch.mm, *inputs))) == 1


def test_a_vector_of_a_dynamic_length():
    for rows in (40, 56):
        result = checked(lambda x, w: (x.relu() @ w).sigmoid(), R(rows, 24), R(24, 1), dynamic=True)
        assert not calls(result)


def test_no_terms():
    checked(torch.mm, torch.empty(80, 0), torch.empty(0, 1))
    checked(torch.mm, torch.empty(0, 80), torch.empty(80, 1))


def test_what_makes_the_operand_is_part_of_the_loop():
    fn = lambda x, a, w: F.linear(torch.where(x > 0, x, a * x), w)
    result = checked(fn, R(48, 32), R(1), R(1, 32))
    assert len(result.compilation.plan.groups) == 1


def scored(x, gradient, slope, weight):
    """The gradients of ``linear(prelu(x), weight)``, whose result has one column, and of the bias that
    was added to x."""
    outer = gradient @ weight
    own = torch.where(x > 0, outer, slope * outer)
    return (
        own,
        torch.where(x > 0, 0.0, x * outer).sum(),
        own.sum(0),
        gradient.t() @ torch.where(x > 0, x, slope * x),
    )


def test_gradients_of_a_scale_a_bias_and_a_weight_are_one_pass(monkeypatch):
    """The sum of all elements is split as the sums of columns are; without, x is read twice."""
    inputs = R(8192, 4), R(8192, 1), R(1), R(1, 4)
    result = checked(scored, *inputs)
    large = [
        g for g in result.compilation.plan.groups if any(8192 * 4 == size for size in _sizes(g))
    ]
    assert len(large) == 1
    monkeypatch.setattr(split_reductions, "_columns_beside", lambda *arguments: None)
    result = checked(scored, *inputs)
    large = [
        g for g in result.compilation.plan.groups if any(8192 * 4 == size for size in _sizes(g))
    ]
    assert len(large) == 2


def _sizes(group):
    import math

    return [math.prod(node.sizes) for node in group.nodes]


def test_a_training_step_of_a_head_with_one_output():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 1))
    other = nn.Sequential(nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 1)).double()
    other.load_state_dict(model.state_dict())
    with interpreted():
        fast = tracer_core.compile(model, backend="inductor")
        for rows in (600, 600, 700):
            x, y = R(rows, 16), R(rows, 1)
            F.mse_loss(fast(x), y).backward()
            F.mse_loss(other(x.double()), y.double()).backward()
            for ours, exact in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(ours.grad, exact.grad.float(), rtol=1e-4, atol=1e-5)
                ours.grad = exact.grad = None
