"""Weights of 8 and 4 bits, and layers that multiply by them, in the arithmetic of quantizing libraries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Quantized:
    """Integers [N, K] with a scale and a zero for `group` terms of each row."""

    integers: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    group: int

    @classmethod
    def random(
        cls,
        columns: int,
        terms: int,
        group: int,
        dtype: torch.dtype,
        integer: torch.dtype = torch.int8,
        zeros: bool = True,
    ) -> Quantized:
        limits = torch.iinfo(integer)
        groups = (columns, terms // group)
        zero = torch.randint(-8, 8, groups, dtype=torch.int8) * zeros
        integers = torch.randint(limits.min, limits.max + 1, (columns, terms), dtype=integer)
        return cls(integers, torch.rand(groups).to(dtype) / 100, zero, group)

    def weight(self, dtype: torch.dtype) -> torch.Tensor:
        """Returns the weights as torchao's ``dequantize_affine`` computes them."""
        integers = self.integers.view(len(self.integers), -1, self.group).to(dtype)
        moved = integers - self.zero.unsqueeze(-1).to(dtype)
        return (moved * self.scale.unsqueeze(-1).to(dtype)).view(self.integers.shape)


class ScaledAfter(nn.Module):
    """A linear layer of int8 whose sums are scaled, as torchao's ``Int8WeightOnlyConfig`` and gpt-fast
    compute it.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1).float() / 127
        self.register_buffer("integers", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(weight.dtype))
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        result = rows @ self.integers.t().to(x.dtype) * self.scale
        result = result.view(*x.shape[:-1], -1)
        return result if self.bias is None else result + self.bias


class ScaledGroups(nn.Module):
    """A linear layer whose weights of 4 bits, one a byte, are scaled by group, as torchao's
    ``IntxWeightOnlyConfig`` computes it.
    """

    def __init__(self, layer: nn.Linear, group: int) -> None:
        super().__init__()
        weight = layer.weight.detach()
        grouped = weight.view(len(weight), -1, group)
        scale = grouped.abs().amax(-1) / 7
        integers = (grouped / scale.unsqueeze(-1)).round().to(torch.int8)
        self.register_buffer("integers", integers.view(weight.shape))
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.zeros_like(scale, dtype=torch.int8))
        self.bias, self.group = layer.bias, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quantized = Quantized(self.integers, self.scale, self.zero, self.group)
        return F.linear(x, quantized.weight(x.dtype), self.bias)
