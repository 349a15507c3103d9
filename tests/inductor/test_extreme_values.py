"""Values at the edge of a dtype: NaN in gradients, statistics of numbers near the largest."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core

NAN, INF = float("nan"), float("inf")
EDGES = torch.tensor([NAN, 1.0, 2.0, INF, 0.0, -INF, -0.5, 0.25, 3.0, -0.0] * 3)


def smooth_l1(x):
    return F.smooth_l1_loss(x, torch.ones_like(x), reduction="none")


def smooth_l1_mean(x):
    return F.smooth_l1_loss(x, torch.ones_like(x), beta=0.5)


def absolute(x):
    return F.smooth_l1_loss(x, torch.ones_like(x), beta=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("program", [smooth_l1, smooth_l1_mean, absolute])
def test_gradients_at_nan_and_infinity(program, dtype):
    compiled = tracer_core.compile(program)
    for size in (30, 7):
        x = EDGES[:size].to(dtype).requires_grad_()
        want, got = (torch.autograd.grad(fn(x).sum(), x)[0] for fn in (program, compiled))
        torch.testing.assert_close(got, want, equal_nan=True)


def statistics(x):
    return torch.var_mean(x), torch.var_mean(x, 0), torch.var_mean(x, -1), torch.std_mean(x * 0.5)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-8])
@pytest.mark.parametrize("shape", [(4, 4), (2, 700), (300, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_statistics_near_the_largest_number(dtype, shape, scale):
    compiled = tracer_core.compile(statistics, dynamic=False)
    largest = torch.finfo(dtype).max * scale * 0.4
    for x in (torch.full(shape, largest, dtype=dtype), torch.rand(shape, dtype=dtype) * largest):
        torch.testing.assert_close(compiled(x), statistics(x), rtol=1e-5, atol=0)
