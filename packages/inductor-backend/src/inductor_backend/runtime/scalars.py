"""Numbers that a call brings, where kernels read them: one tensor for all of a graph's.

In: Python floats. Out: a float64 tensor with a number in each row's first element, `PITCH` bytes
from one to the next (a kernel may count on aligned pointers). What always holds: nothing waits for
the device; inside somebody's capture the numbers become constants of the recording, as eager's are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

#: Bytes from number to number.
PITCH = 16


def on_host(values: Sequence[float], pinned: bool = False) -> torch.Tensor:
    """The tensor on the host. pinned: memory that devices copy from while the host goes on."""
    made = torch.empty((len(values), PITCH // 8), dtype=torch.float64, pin_memory=pinned)
    made[:, 0] = torch.tensor(values, dtype=torch.float64)
    return made


def on_device(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """The tensor on the device of the kernels."""
    if device.type != "cuda":
        return on_host(values)
    if torch.cuda.is_current_stream_capturing():
        made = torch.empty((len(values), PITCH // 8), dtype=torch.float64, device=device)
        for row, value in zip(made.unbind(), values, strict=True):
            row.fill_(value)
        return made
    return on_host(values, pinned=True).to(device, non_blocking=True)
