"""An autograd.Function that scales its argument."""

from __future__ import annotations

import torch


class Scale(torch.autograd.Function):
    """A backward that no automatic differentiation would give."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k * 10, None
