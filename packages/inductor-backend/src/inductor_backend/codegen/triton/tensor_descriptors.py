"""Decides which blocks of a matmul's operands TMA (from sm_90 on) can load through tensor
descriptors.

`place_of` derives from a load's address over the axes of a block where the blocks lie in a matrix;
the kernel's writer makes a `Matrix` of it. Starts and row strides are multiples of 16 bytes. TMA
reads 0 beyond the matrix's ends, so K needs no mask. Where a call's memory is not aligned to 16
bytes, the launch uses the kernel without TMA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inductor_backend.codegen.triton.block_sizes import FLAT, Axis
from inductor_backend.ir.index_expr import Expr, Index, Var

#: The kernel parameter that enables its tensor descriptors.
BULK = "BULK"

#: Alignment of rows in bytes.
UNIT = 16

#: Coordinates have 32 bits.
MAX_SIZE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """name: of the kernel's argument. pointer: number of the pointer argument, to which byte
    `start` is added. kind: element type (bf16, fp16, fp32). sizes: rows, columns. stride: row
    stride in bytes. block: rows, columns of one load."""

    name: str
    pointer: int
    kind: str
    start: int
    sizes: tuple[Expr, Expr]
    stride: int
    block: tuple[int, int]

    def form(self) -> Matrix:
        """Returns the matrix without what differs from launch to launch."""
        return replace(self, start=0, sizes=(0, 0), stride=0)


@dataclass(frozen=True, slots=True)
class DescriptorPlace:
    """Where a block lies."""

    #: The axes that index them.
    rows: Axis
    columns: Axis
    #: (loop, rows of one step) for each batch loop.
    batch: tuple[tuple[int, int], ...]
    #: The offset in elements.
    start: int
    stride: int
    #: The sizes of the matrix.
    sizes: tuple[Expr, Expr]


def place_of(
    index: Index, axes: Sequence[Axis], outside: Sequence[int], loops: Sequence[Expr], itemsize: int
) -> DescriptorPlace | None:
    """index: of a load, over loops and flat axes (`FLAT` + number). outside: batch loops. loops:
    all sizes. Returns None where the blocks are no blocks of a matrix."""
    terms = dict(_strides(index))
    if (
        len(terms) != len(index.terms)
        or not isinstance(index.const, int)
        or index.const * itemsize % UNIT
    ):
        return None
    strides = [
        terms.pop(axis.loops[0] if len(axis.loops) == 1 else FLAT + n, 0)
        for n, axis in enumerate(axes)
    ]
    if strides.count(1) != 1 or len(axes) != 2:
        return None
    across = strides.index(1)
    rows, columns, stride = axes[1 - across], axes[across], strides[1 - across]
    if not isinstance(stride, int) or stride <= 1 or stride * itemsize % UNIT:
        return None
    if isinstance(columns.numel, int) and columns.numel > stride:
        return None
    batch = _batch(terms, outside, loops, stride)
    if batch is None or (batch and not (isinstance(rows.numel, int) and _whole(rows))):
        return None
    height = rows.numel
    for loop, rows_apart in batch:
        height = height + (loops[loop] - 1) * rows_apart
    if any(isinstance(size, int) and not 0 < size <= MAX_SIZE for size in (height, columns.numel)):
        return None
    return DescriptorPlace(rows, columns, batch, index.const, stride, (height, columns.numel))


def _strides(index: Index) -> list[tuple[int, Expr]]:
    return [
        (atom.position, stride) for atom, stride in index.terms.items() if isinstance(atom, Var)
    ]


def _whole(rows: Axis) -> bool:
    """Returns whether blocks stay within K of their own matmul in a batch. (Rows of another
    matmul's results are not stored.)"""
    return rows.letter not in "rq" or rows.exact


def _batch(
    terms: dict[int, Expr], outside: Sequence[int], loops: Sequence[Expr], stride: int
) -> tuple[tuple[int, int], ...] | None:
    """Returns the steps of the batch loops in rows, None where they are no whole rows."""
    result = []
    for loop, loop_stride in terms.items():
        if (
            loop not in outside
            or not isinstance(loop_stride, int)
            or not isinstance(loops[loop], int)
            or loop_stride < 0
        ):
            return None
        if loop_stride % stride:
            return None
        result.append((loop, loop_stride // stride))
    return tuple(result)
