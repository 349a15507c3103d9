"""Trains a model beside one that is compiled, and compares losses, gradients, buffers and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Loss = Callable[[Any], torch.Tensor]


def first_tensor(outputs: Any) -> torch.Tensor:
    loss = outputs[0] if isinstance(outputs, tuple) else outputs
    return loss.square().mean()


def step(
    function: Callable[..., Any], module: nn.Module, inputs: Any, loss_of: Loss, seed: int
) -> list[Any]:
    """One step; what it leaves behind: loss, gradients, buffers, random state."""
    torch.manual_seed(seed)
    arguments = [
        value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for value in inputs
    ]
    module.zero_grad()
    loss = loss_of(function(*arguments))
    loss.backward()
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    gradients = [value.grad for value in (*module.parameters(), *tensors)]
    return [loss.detach(), gradients, [b.clone() for b in module.buffers()], torch.get_rng_state()]


class Calls(nn.Module):
    """A module around a function that takes the module and inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))
