"""A gradient that asks where the greatest element of a normalised row was."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_extremes_of_a_layer_norm_have_gradients(dtype):
    """Their gradient asks where the greatest element was: what is computed again has to be the same
    to the last bit.
    """
    x = (torch.arange(24).reshape(8, 3) * 7 % 33 / 8 - 2).to(dtype).requires_grad_()

    def program(x):
        return F.layer_norm(x, x.shape[-1:]).amin(0)

    (ours,) = torch.autograd.grad(tracer_core.compile(program, backend="inductor")(x).sum(), x)
    (eager,) = torch.autograd.grad(program(x).sum(), x)
    torch.testing.assert_close(ours, eager)
