"""Lowers adaptive pooling to pointwise nodes where windows are small, and to a reduction where they
are large.

Window o of O over n elements is [o * n // O, ceil((o + 1) * n / O)), as in eager, for symbolic
sizes, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Expr, Index, flatten, floordiv, product, simplify
from inductor_backend.ir.index_expr import contiguous_strides as dense_strides
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.limits import MAX_UNROLLED_WINDOW
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten
from inductor_backend.lowering.pools import (
    Element,
    both,
    greatest,
    greatest_and_where,
    least_value,
    number,
    read_if,
)
from inductor_backend.lowering.reduction import as_number


def _start(at: Index, size: Expr, outputs: Expr) -> Index:
    return floordiv(at * size, outputs)


def _end(at: Index, size: Expr, outputs: Expr) -> Index:
    return floordiv(at * size + simplify(size + outputs - 1), outputs)


def _widest(size: Expr, outputs: Expr) -> int | None:
    """Returns the most elements of a window of one dimension; None where that is symbolic."""
    if not isinstance(size, int) or not isinstance(outputs, int) or outputs == 0:
        return None
    return max(-(-(o + 1) * size // outputs) - o * size // outputs for o in range(outputs))


def _elements(
    x: Ref, at: At, outputs: Sequence[Expr], widest: Sequence[int], outside: float
) -> list[Element]:
    """Returns the window's elements, each with its test: narrower windows end earlier."""
    lead = len(x.sizes) - len(outputs)
    spatial = x.sizes[lead:]
    starts = [_start(at[lead + k], size, outputs[k]) for k, size in enumerate(spatial)]
    even = [
        isinstance(s, int) and isinstance(o, int) and s % o == 0
        for s, o in zip(spatial, outputs, strict=True)
    ]
    result = []
    for offsets in itertools.product(*(range(w) for w in widest)):
        position = [start + offset for start, offset in zip(starts, offsets, strict=True)]
        test: Value | None = None
        for k, offset in enumerate(offsets):
            if offset and not even[k]:
                end = number(_end(at[lead + k], spatial[k], outputs[k]))
                test = both(test, make("lt", number(position[k]), end))
        value = read_if(x, [*at[:lead], *position], test, compute_dtype(x.dtype), outside)
        result.append(Element(value, flatten(position, dense_strides(spatial)), test))
    return result


def window_size(
    at: At, lead: int, spatial: Sequence[Expr], outputs: Sequence[Expr], dtype: torch.dtype
) -> Value:
    """Returns the number of elements of a window."""
    total = const(1, dtype)
    for k, size in enumerate(spatial):
        here = at[lead + k]
        if isinstance(size, int) and isinstance(outputs[k], int) and size % outputs[k] == 0:
            width = const(size // outputs[k], dtype)
        else:
            width = cast(
                make(
                    "sub",
                    number(_end(here, size, outputs[k])),
                    number(_start(here, size, outputs[k])),
                ),
                dtype,
            )
        total = make("mul", total, width)
    return total


def _adaptive_avg(rank: int) -> Any:
    def lowering(ctx: Lowering, x: Ref, sizes: Sequence[Any]) -> Ref:
        outputs, dtype = ctx.shape()[-rank:], compute_dtype(x.dtype)
        lead, spatial = len(x.sizes) - rank, x.sizes[-rank:]
        if all(size == 1 for size in outputs):
            dims = list(range(lead, len(x.sizes)))
            (total,) = ctx.reduction(
                "sum", lambda at: cast(x.at(at), dtype), x.sizes, dims, dtype, "avg_pool"
            )
            size = as_number(product(spatial), dtype)
            return ctx.pointwise(lambda at: make("div", total.at(at), size), label="avg_pool")
        widest = [_widest(n, o) for n, o in zip(spatial, outputs, strict=True)]
        if any(w is None for w in widest):
            return call_aten(ctx, x, list(sizes))

        def divisor(at: At) -> Value:
            return window_size(at, lead, spatial, outputs, dtype)

        counts = [w for w in widest if w is not None]
        if product(counts) <= MAX_UNROLLED_WINDOW:

            def average(at: At) -> Value:
                result = _elements(x, at, outputs, counts, 0)
                total = make("add", result[0].value, const(0, dtype))  # as eager's sums begin
                for element in result[1:]:
                    total = make("add", total, element.value)
                return make("div", total, divisor(at))

            return ctx.pointwise(average, label="avg_pool")
        uneven = any(n % o for n, o in zip(spatial, outputs, strict=True))
        # computing each element's window by division is slower
        if uneven and ctx.strides()[-1] == 1:
            return call_aten(ctx, x, list(sizes))
        total = _window_sum(ctx, x, outputs, counts, dtype)
        return ctx.pointwise(lambda at: make("div", total.at(at), divisor(at)), label="avg_pool")

    return lowering


def _window_sum(
    ctx: Lowering, x: Ref, outputs: Sequence[Expr], widest: Sequence[int], dtype: torch.dtype
) -> Ref:
    """Sums each window, by a reduction over the widest one."""
    lead, rank = len(x.sizes) - len(outputs), len(outputs)
    spatial, domain = x.sizes[lead:], [*x.sizes[:lead], *outputs, *widest]

    def body(at: At) -> Value:
        test: Value | None = None
        position = list(at[:lead])
        for k in range(rank):
            here = _start(at[lead + k], spatial[k], outputs[k]) + at[lead + rank + k]
            if spatial[k] % outputs[k]:
                end = number(_end(at[lead + k], spatial[k], outputs[k]))
                test = both(test, make("lt", number(here), end))
            position.append(here)
        return read_if(x, position, test, dtype, 0)

    (total,) = ctx.reduction(
        "sum", body, domain, range(lead + rank, len(domain)), dtype, "avg_pool"
    )
    return total.reshape((*x.sizes[:lead], *outputs))


lower(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)(_adaptive_avg(2))
lower(aten._adaptive_avg_pool3d.default)(_adaptive_avg(3))


def _adaptive_max(rank: int) -> Any:
    def lowering(ctx: Lowering, x: Ref, sizes: Sequence[Any]) -> Any:
        outputs, spatial = ctx.shape(0)[-rank:], x.sizes[-rank:]
        widest = [_widest(n, o) for n, o in zip(spatial, outputs, strict=True)]
        if any(w is None for w in widest) or product(widest) > MAX_UNROLLED_WINDOW:
            return call_aten(ctx, x, list(sizes))
        used, least = ctx.used_outputs(), least_value(x.dtype)
        combine = greatest_and_where if 1 in used else greatest

        def output(place: int, dtype: torch.dtype) -> Ref:
            return ctx.pointwise(
                lambda at: combine(_elements(x, at, outputs, widest, least), None)[place],  # type: ignore[arg-type]
                ctx.shape(place),
                dtype,
                ctx.strides(place),
                label="max_pool",
            )

        return output(0, x.dtype), output(1, torch.int64) if 1 in used else None

    return lowering


lower(aten.adaptive_max_pool2d.default)(_adaptive_max(2))
lower(aten.adaptive_max_pool3d.default)(_adaptive_max(3))
