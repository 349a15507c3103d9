"""Which blocks of a product's factors the bulk copy engine of a GPU (TMA, from sm_90 on) can bring
in.

In: the address of a load over the axes of a block. Out: a `Matrix`, rows of elements side by side,
and the place of the block in it. What always holds: rows begin at multiples of 16 bytes of each
other; what lies beyond the matrix's ends is read as 0, so a sum's terms never come from there;
where a call's memory does not begin at a multiple of 16 bytes, the launch takes the kernel without
bulk copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from inductor_backend.codegen.triton.tiling import FLAT, Axis
from inductor_backend.ir.index_expr import Expr, Index, Var

#: The parameter of a kernel that says whether its matrices are there.
BULK = "BULK"

#: Rows begin at multiples of so many bytes.
UNIT = 16

#: Coordinates have 32 bits.
LONGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """name: of the kernel's argument. pointer: number of the one behind which it lies, from byte
    `start` on. kind: element type (bf16, fp16, fp32). sizes: rows, columns. stride: bytes from row
    to row. block: rows, columns of what is copied at once."""

    name: str
    pointer: int
    kind: str
    start: int
    sizes: tuple[Expr, Expr]
    stride: int
    block: tuple[int, int]

    def form(self) -> Matrix:
        """Without what differs from launch to launch."""
        return replace(self, start=0, sizes=(0, 0), stride=0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block lies: rows, columns: the axes that walk them; batch: (loop, rows of one step)
    for each loop outside. start, stride: in elements. sizes: of the matrix."""

    rows: Axis
    columns: Axis
    batch: tuple[tuple[int, int], ...]
    start: int
    stride: int
    sizes: tuple[Expr, Expr]


def place_of(
    index: Index, axes: Sequence[Axis], outside: Sequence[int], loops: Sequence[Expr], itemsize: int
) -> Place | None:
    """index: of a load, over loops and flat axes (`FLAT` + number). outside: loops of batches.
    loops: all sizes. None where the blocks are no blocks of a matrix."""
    terms = dict(_steps(index))
    if (
        len(terms) != len(index.terms)
        or not isinstance(index.const, int)
        or index.const * itemsize % UNIT
    ):
        return None
    steps = [
        terms.pop(axis.loops[0] if len(axis.loops) == 1 else FLAT + n, 0)
        for n, axis in enumerate(axes)
    ]
    if steps.count(1) != 1 or len(axes) != 2:
        return None
    across = steps.index(1)
    rows, columns, stride = axes[1 - across], axes[across], steps[1 - across]
    if not isinstance(stride, int) or stride <= 1 or stride * itemsize % UNIT:
        return None
    if isinstance(columns.numel, int) and columns.numel > stride:
        return None
    batch = _batch(terms, outside, loops, stride)
    if batch is None or (batch and not (isinstance(rows.numel, int) and _whole(rows))):
        return None
    height = rows.numel
    for loop, step in batch:
        height = height + (loops[loop] - 1) * step
    if any(isinstance(size, int) and not 0 < size <= LONGEST for size in (height, columns.numel)):
        return None
    return Place(rows, columns, batch, index.const, stride, (height, columns.numel))


def _steps(index: Index) -> list[tuple[int, Expr]]:
    return [(atom.position, step) for atom, step in index.terms.items() if isinstance(atom, Var)]


def _whole(rows: Axis) -> bool:
    """Blocks do not reach into the next product's terms. (Rows of another product's results are not
    stored.)
    """
    return rows.letter not in "rq" or rows.exact


def _batch(
    terms: dict[int, Expr], outside: Sequence[int], loops: Sequence[Expr], stride: int
) -> tuple[tuple[int, int], ...] | None:
    """Steps of the loops outside in rows, None where they are none."""
    found = []
    for loop, step in terms.items():
        if (
            loop not in outside
            or not isinstance(step, int)
            or not isinstance(loops[loop], int)
            or step < 0
        ):
            return None
        if step % stride:
            return None
        found.append((loop, step // stride))
    return tuple(found)
