"""Seeded random programs of views, writes and arithmetic, over tensors that share memory in many
ways.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

VIEWS: list[Callable[[random.Random, torch.Tensor], torch.Tensor]] = [
    lambda r, x: x.transpose(0, -1) if x.dim() else x,
    lambda r, x: x[r.randrange(x.shape[0])] if x.dim() > 1 else x,
    lambda r, x: x[1:] if x.dim() and x.shape[0] > 2 else x,
    lambda r, x: x[..., ::2] if x.dim() else x,
    lambda r, x: x.unsqueeze(0) if x.dim() < 3 else x,
    lambda r, x: x.reshape(-1),
    lambda r, x: x.chunk(2, 0)[-1] if x.dim() and x.shape[0] > 1 else x,
    lambda r, x: x.detach(),
    lambda r, x: x.expand(2, *x.shape) if x.dim() < 2 else x,
    lambda r, x: x.contiguous(),
]

WRITES: list[Callable[[random.Random, torch.Tensor, torch.Tensor], Any]] = [
    lambda r, x, y: x.add_(1),
    lambda r, x, y: x.mul_(0.5),
    lambda r, x, y: x.copy_(y.sum()),
    lambda r, x, y: x.zero_() if r.random() < 0.3 else x.sigmoid_(),
    lambda r, x, y: x.add_(y.mean()),
    lambda r, x, y: x.__setitem__(..., y.sum() * 0.1),
    lambda r, x, y: x.clamp_(-1, 1),
    lambda r, x, y: torch.sin(x, out=x) if x.is_contiguous() else x.sin_(),
]

VALUES: list[Callable[[random.Random, torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda r, x, y: x + y.mean(),
    lambda r, x, y: x * 2,
    lambda r, x, y: x.softmax(-1) if x.dim() else x.tanh(),
    lambda r, x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    lambda r, x, y: x.sum(-1) if x.dim() else x.exp(),
    lambda r, x, y: torch.rand_like(x),
    lambda r, x, y: x.clone(),
    lambda r, x, y: torch.zeros(3, 2) + y.mean(),
]


def inputs_of(seed: int) -> tuple[torch.Tensor, ...]:
    """The inputs of program `seed`, some of them strided or views with an offset."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    makers = [
        lambda: torch.randn(4, 6),
        lambda: torch.randn(6, 4).t(),
        lambda: torch.randn(5, 3)[1:],
        lambda: torch.randn(4, 8)[:, ::2],
        lambda: torch.randn(7),
        lambda: torch.randn(()),
    ]
    return tuple(r.choice(makers)() for _ in range(r.randint(1, 3)))


def program_of(seed: int, steps: int = 9) -> Callable[..., tuple[Any, ...]]:
    """Program `seed`: every call does the same."""

    def program(*inputs: torch.Tensor) -> tuple[Any, ...]:
        r = random.Random(f"program {seed}")
        live = list(inputs)
        for _ in range(steps):
            x, y = r.choice(live), r.choice(live)
            kind = r.random()
            if kind < 0.4:
                live.append(r.choice(VIEWS)(r, x))
            elif kind < 0.7:
                if not _overlaps_itself(x):
                    r.choice(WRITES)(r, x, y)
            else:
                live.append(r.choice(VALUES)(r, x, y))
        return tuple(r.choice(live) for _ in range(r.randint(1, 4)))

    return program


def _overlaps_itself(x: torch.Tensor) -> bool:
    """Eager refuses to write to expanded tensors."""
    return any(step == 0 and size > 1 for size, step in zip(x.shape, x.stride(), strict=True))
