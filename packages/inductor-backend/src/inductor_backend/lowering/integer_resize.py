"""Resizes contiguous rows by an integer factor without computing positions.

Each point of a loop stores the `factor` results around one element of the operand, so that loads
and stores are contiguous; borders are separate loops. Each result is written once. Weights are
those of `sampling`, up to the rounding of a position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inductor_backend.ir.index_expr import At, Expr, Index, variables
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.limits import MAX_UNROLLED_RESIZE
from inductor_backend.lowering.context import Lowering

#: Reads the row of the operand that a row of the result needs at a column: (position before it,
#: column) -> value.
Row = Callable[[At, Index], Value]


def whole_factor(size: Expr, output: Expr, scale: float | None) -> int | None:
    """Returns the factor by which a dimension grows; None where it is no integer or is not
    unrolled."""
    if not isinstance(size, int) or not isinstance(output, int) or size < 2 or output % size:
        return None
    factor = output // size
    return factor if 2 <= factor <= MAX_UNROLLED_RESIZE and scale in (None, float(factor)) else None


@dataclass(frozen=True, slots=True)
class Column:
    """One result beside element j of a row."""

    #: Neighbours, as distances from j, with their weights.
    taps: tuple[tuple[int, float], ...]


def nearest_columns(factor: int) -> list[Column]:
    return [Column(((0, 1.0),)) for _ in range(factor)]


def linear_columns(factor: int) -> list[Column]:
    """Result ``factor * j + r`` lies at ``j + (r + 0.5) / factor - 0.5``."""
    result = []
    for r in range(factor):
        distance = (r + 0.5) / factor - 0.5
        low = -1 if distance < 0 else 0
        far = distance - low
        # Eager multiplies by a weight of zero, too: infinity becomes NaN.
        result.append(Column(((low, 1 - far), (low + 1, far))))
    return result


def resize_rows(ctx: Lowering, x: Ref, columns: Sequence[Column], row: Row) -> Ref:
    """Computes the whole result. row: the weighted sum over the other dimensions, for one column of
    the operand."""
    sizes, dtype = ctx.shape(), compute_dtype(x.dtype)
    factor, size = len(columns), x.sizes[-1]
    assert isinstance(size, int)
    buffer = ctx.buffer(sizes, x.dtype)
    widest = max(abs(distance) for column in columns for distance, _ in column.taps)
    spans = [(0, size)] if widest == 0 else [(0, 1), (1, size - 1), (size - 1, size)]
    for begin, end in spans:
        if begin == end:
            continue
        domain = (*sizes[:-1], end - begin)
        at = variables(domain)
        middle = begin > 0 and end < size

        def value(column: Column, at: At = at, begin: int = begin, middle: bool = middle) -> Value:
            parts = []
            taps = column.taps
            if (
                not middle and begin == 0 and taps[0][0] < 0
            ):  # before the centre of the first column
                taps = ((0, 1.0), (1, 0.0))
            for distance, weight in taps:
                here = at[-1] + begin + distance
                if not middle:  # one column: clamp at the border
                    here = Index(min(max(begin + distance, 0), size - 1)) if widest else here
                parts.append((row(at[:-1], here), weight))
            first, weight = parts[0]
            total = first if weight == 1 else make("mul", first, const(weight, dtype))
            for part, weight in parts[1:]:
                total = make("fma", part, const(weight, dtype), total)
            return total

        stores = [
            Store(
                (buffer.name,),
                (*at[:-1], (at[-1] + begin) * factor + r),
                cast(value(column), x.dtype),
            )
            for r, column in enumerate(columns)
        ]
        ctx.add_loop(domain, [False] * len(domain), stores, "resize")
    return Ref.of(buffer)


def nearest_gradient(ctx: Lowering, dy: Ref, factors: Sequence[int]) -> Ref:
    """Sums the gradients of all copies of an element."""
    dtype, lead = compute_dtype(dy.dtype), len(dy.sizes) - len(factors)

    def body(at: At) -> Value:
        positions: list[list[Index]] = [list(at[:lead])]
        for k, factor in enumerate(factors):
            positions = [[*p, at[lead + k] * factor + r] for p in positions for r in range(factor)]
        return functools.reduce(
            lambda a, b: make("add", a, b), (cast(dy.at(position), dtype) for position in positions)
        )

    return ctx.pointwise(body, label="resize_backward")
