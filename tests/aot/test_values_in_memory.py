"""Of values of the same size, the backward is given one that the forward writes anyway."""

from __future__ import annotations

import torch
from torch.nn import functional as F

import tracer_core


def test_a_rectifier_under_a_power_saves_what_the_matmul_returns():
    def program(x, w, v):
        return F.relu(x @ w).square() @ v

    torch.manual_seed(0)
    inputs = [torch.randn(8, 16), torch.randn(16, 32), torch.randn(32, 4)]
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
    values = [f(*xs) for f, xs in zip((program, fast), leaves, strict=True)]
    (saved,) = [t for t in values[1].grad_fn.saved_tensors if t.shape == (8, 32)]
    assert bool((saved < 0).any())  # the matmul's result, not the rectifier's
    for value in values:
        value.sum().backward()
    for eager, other in zip(*leaves, strict=True):
        torch.testing.assert_close(other.grad, eager.grad, rtol=1e-4, atol=1e-4)


def test_sums_of_residuals_are_saved_and_not_their_terms():
    """Each is read before and after a matmul; from its terms it would be a longer sum every time."""

    def sums_of(x, *weights):
        sums = [x]
        for weight in weights:
            sums.append(sums[-1] + F.layer_norm(sums[-1], (16,)) @ weight)
        return sums

    def program(x, *weights):
        return F.layer_norm(sums_of(x, *weights)[-1], (16,))

    torch.manual_seed(0)
    inputs = [torch.randn(8, 16), *(torch.randn(16, 16) for _ in range(4))]
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
    expected, actual = (f(*xs) for f, xs in zip((program, fast), leaves, strict=True))
    saved = [t for t in actual.grad_fn.saved_tensors if t.shape == (8, 16)]
    for value in sums_of(*inputs)[1:-1]:
        assert any(torch.allclose(value, tensor, atol=1e-4) for tensor in saved)
    for result in (expected, actual):
        result.square().sum().backward()
    for eager, other in zip(*leaves, strict=True):
        torch.testing.assert_close(other.grad, eager.grad, rtol=1e-3, atol=1e-4)
