"""Waits for a collective, and keeps alive what it may still read and write."""

from __future__ import annotations

import torch


def wait(tensor: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
    """Waits for the collective that fills a tensor; returns that tensor. operands: what the
    collective reads, whose memory must not have another use before."""
    done: torch.Tensor = torch.ops._c10d_functional.wait_tensor.default(tensor)
    return done
