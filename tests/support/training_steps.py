"""A whole training step, compiled, beside the same step run eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


def step(model, optimizer, x, target):
    optimizer.zero_grad(True)
    loss = torch.nn.functional.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


def train_beside(
    fast: Callable[..., Any],
    models: tuple[torch.nn.Module, torch.nn.Module],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    schedule: Callable[[torch.optim.Optimizer], Any],
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    *,
    atol: float,
    rtol: float,
) -> None:
    """Trains two equal models, the first by `step`, the second by `fast`, and compares losses,
    parameters, the optimizers' states and buffers. atol, rtol: of a loss; what several steps have
    made may differ ten times as much."""
    theirs, ours = models
    both = [optimizer(model.parameters()) for model in models]
    schedules = [schedule(item) for item in both]
    for x, target in batches:
        losses = step(theirs, both[0], x, target), fast(ours, both[1], x, target)
        torch.testing.assert_close(losses[1], losses[0], atol=atol, rtol=rtol)
        for item in schedules:
            item.step()
    for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q, p, atol=10 * atol, rtol=10 * rtol)
        states = both[0].state[p], both[1].state[q]
        assert states[0].keys() == states[1].keys()
        for key, value in states[0].items():
            if torch.is_tensor(value):
                exact = key == "step"
                torch.testing.assert_close(
                    states[1][key],
                    value,
                    atol=0 if exact else 10 * atol,
                    rtol=0 if exact else 10 * rtol,
                )
    for a, b in zip(theirs.buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(b, a, atol=atol, rtol=rtol)
