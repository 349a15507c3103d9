"""A product whose result's rows begin at multiples of 16 bytes.

In: two matrices. Out: their product, with gaps between rows where these are of another length. What always holds: it is
torch's own product, written to memory that tensor cores store to a vector at a time.
"""

from __future__ import annotations

import torch


def row_length(columns: int, dtype: torch.dtype) -> int:
    """Elements from the beginning of a row to that of the next."""
    unit = 16 // dtype.itemsize
    return -(-columns // unit) * unit


def mm_into_aligned_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``, a [M,K] and b [K,N], with strides (row_length(N), 1)."""
    rows, columns = a.shape[0], b.shape[1]
    out = a.new_empty_strided((rows, columns), (row_length(columns, a.dtype), 1))
    return torch.mm(a, b, out=out)
