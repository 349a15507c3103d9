"""Small models for random sequences (`sequences`): each shows another way in which results, inputs
and state lie in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
        self.drop, self.last = nn.Dropout(0.25), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = (
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.5)),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x):
        return self.last(checkpoint(self.inner, x, use_reentrant=False)), x * 2


class Counting(nn.Module):
    """Writes to a buffer, and gives it to the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("total", torch.zeros(WIDTH))

    def forward(self, x):
        with torch.no_grad():
            self.total.mul_(0.5).add_(x.sum(0))
        return (x * self.scale + self.total).tanh(), self.total


def _large(x):
    return (x * 2).tanh(), x + 1


def _shared(x):
    y = (x + 1).sin()
    return y, y.view(-1), y[:, ::2], y.t()


def _views(x):
    return x[1:], x.t(), (x * 2).cos()


def _writes(x):
    x = x.detach()
    y = x.exp().clamp(max=3)
    x.mul_(0.5)
    return y, x


def _random(x):
    return x * torch.rand_like(x), torch.randn(3, device=x.device)


def _odd(x):
    """Repeated elements, other types, nothing, numbers."""
    return x.sum(0).expand(3, WIDTH), x > 0, x[:0] * 2, x.argmax(), x.shape[0]


def _reads(x):
    y = x.tanh()
    return y * 2 if y.sum().item() > 0 else y - 1


def _selects(x):
    return x[x > 0].sum() + x, (x > 0).nonzero().float().sum()


def scaled(x, by=1):
    return (x * by).tanh(), x.add(1, alpha=by)


ZOO: dict[str, Callable[[], Any]] = {
    "net": Net, "checkpointed": Checkpointed, "counting": Counting,
    **{value.__name__: (lambda item=value: item)
       for value in (_large, _shared, _views, _writes, _random, _odd, _reads, _selects, scaled)},
}  # fmt: skip


def value_of(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().clone()
