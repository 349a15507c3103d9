"""CUDA matmul with a dense result whose rows are not multiples of 16 bytes (a vocabulary of 50257).

Computes ``a @ b``, contiguous, where the rows or columns of one operand are aligned to 16 bytes.
Every element is written by a matmul over all of K, so results differ from ATen's by rounding only.

Tensor cores write 16 bytes at once. Of rows of 50257 floats every fourth begins at a multiple of 16
bytes; the others reach one at a later column. So each class of rows gets its own matmul, from that
column on, into a view of the result, at the full rate (H100, 2048 x 768 x 50257 in TF32: 1.26 ms in
one piece); two small matmuls write the first and last columns. Padding the operands
(`passes.pad_matmul`) would copy the result once more.
"""

from __future__ import annotations

import math

import torch

#: FLOPs of a matmul for each byte of an operand from which a copy with aligned rows pays.
WORK_OF_A_BYTE = 200


def classes(columns: int, unit: int) -> int:
    """Returns the number of row classes by alignment to `unit` elements."""
    return unit // math.gcd(columns, unit)


def aligned(columns: int, dtype: torch.dtype) -> int:
    """Returns the least length of rows, in elements, that is a multiple of 16 bytes."""
    unit = 16 // dtype.itemsize
    return -(-columns // unit) * unit


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``, contiguous; b has at least 32 bytes of columns."""
    rows, columns = a.shape[0], b.shape[1]
    unit = 16 // a.itemsize
    with torch.no_grad():
        out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)
        torch.mm(a, b[:, :unit], out=out[:, :unit])
        torch.mm(a, b[:, columns - unit :], out=out[:, columns - unit :])
        count = classes(columns, unit)
        for first in range(min(count, rows)):
            begin = -first * columns % unit
            end = begin + (columns - begin) // unit * unit
            torch.mm(a[first::count], b[:, begin:end], out=out[first::count, begin:end])
    return out


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of matrices, or of batches of them, in memory whose rows begin at multiples of 16
    bytes: for a result that only the graph reads."""
    columns = b.shape[-1]
    with torch.no_grad():
        shape = (*a.shape[:-1], aligned(columns, a.dtype))
        out = torch.empty(shape, dtype=a.dtype, device=a.device)[..., :columns]
        return torch.mm(a, b, out=out) if a.dim() == 2 else torch.bmm(a, b, out=out)
