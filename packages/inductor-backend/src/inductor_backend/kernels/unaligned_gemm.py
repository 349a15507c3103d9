"""A product whose result must lie densely although its rows do not begin at multiples of 16 bytes
(50257 words).

In: a matrix of any strides and one whose rows or columns begin at such multiples. Out: ``a @ b``,
row after row. What always holds: every element is written by a product of all terms, so that
results differ from ATen's by rounding alone.

Tensor cores write 16 bytes at once. Of rows of 50257 floats every fourth begins at a multiple of 16
bytes; of those between, some later column does. So every class of rows is a product of its own,
from that column on, into a view of the result, at the full rate (H100, 2048 x 768 x 50257 in TF32:
1.26 ms in one piece), and two small ones write the first and last columns. Padding the operands
(`passes.pad_matmul`) moves the result once more.
"""

from __future__ import annotations

import math

import torch


def classes(columns: int, unit: int) -> int:
    """Into how many classes rows fall by where they begin in `unit` elements."""
    return unit // math.gcd(columns, unit)


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
