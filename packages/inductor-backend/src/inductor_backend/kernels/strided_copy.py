"""Copies tensors of dtypes that loops do not hold (complex numbers, 8-bit floats)."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """Copies a tensor into memory of its own, laid out by these strides."""
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)
