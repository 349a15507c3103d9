"""Symbolic float scalars of a call, passed to kernels in one float64 tensor.

Each row's first element holds one scalar; rows are `PITCH` bytes apart (a kernel may assume aligned
pointers). Nothing waits for the device. Inside another party's CUDA graph capture the scalars
become constants of the graph, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Bytes from scalar to scalar.
PITCH = 16


def on_host(values: Sequence[float], pinned: bool = False) -> torch.Tensor:
    """Returns the tensor on the host. pinned: memory that devices copy from asynchronously."""
    result = torch.empty((len(values), PITCH // 8), dtype=torch.float64, pin_memory=pinned)
    result[:, 0] = torch.tensor(values, dtype=torch.float64)
    return result


def on_device(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """Returns the tensor on the kernels' device."""
    if device.type != "cuda":
        return on_host(values)
    if torch.cuda.is_current_stream_capturing():
        result = torch.empty((len(values), PITCH // 8), dtype=torch.float64, device=device)
        for row, value in zip(result.unbind(), values, strict=True):
            row.fill_(value)
        return result
    return on_host(values, pinned=True).to(device, non_blocking=True)
