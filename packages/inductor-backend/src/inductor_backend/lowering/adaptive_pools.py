"""Adaptive pooling, whose windows differ in size, and gradients of average pools.

In: graph nodes. Out: pointwise nodes where windows are small, a reduction where they are large. What always
holds: window o of O over n elements is [o * n // O, ceil((o + 1) * n / O)), as eager has it, for symbolic
sizes too; a gradient is gathered from the windows that hold an element, in ascending order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.index_expr import Expr, Index, flatten, floordiv, product, simplify
from inductor_backend.index_expr import contiguous_strides as dense_strides
from inductor_backend.loop_ir.values import Value, cast, const, make
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.fallback import call_fallback
from inductor_backend.lowering.pools import (
    LARGEST_WINDOW,
    Element,
    Windows,
    both,
    greatest,
    greatest_and_where,
    inside,
    least_value,
    number,
    reach,
    read_if,
    windows,
)
from inductor_backend.lowering.reduction import as_number
from inductor_backend.lowering.registry import Lowering, aten, lower
from inductor_backend.ops import compute_dtype

At = Sequence[Index]


def _start(at: Index, size: Expr, outputs: Expr) -> Index:
    return floordiv(at * size, outputs)


def _end(at: Index, size: Expr, outputs: Expr) -> Index:
    return floordiv(at * size + simplify(size + outputs - 1), outputs)


def _widest(size: Expr, outputs: Expr) -> int | None:
    """The most elements that a window of one dimension has; None where it depends on symbols."""
    if not isinstance(size, int) or not isinstance(outputs, int) or outputs == 0:
        return None
    return max(-(-(o + 1) * size // outputs) - o * size // outputs for o in range(outputs))


def _elements(
    x: Ref, at: At, outputs: Sequence[Expr], widest: Sequence[int], outside: float
) -> list[Element]:
    """The window's elements; those beyond the end of a narrower window are not there."""
    lead = len(x.sizes) - len(outputs)
    spatial = x.sizes[lead:]
    starts = [_start(at[lead + k], size, outputs[k]) for k, size in enumerate(spatial)]
    even = [
        isinstance(s, int) and isinstance(o, int) and s % o == 0
        for s, o in zip(spatial, outputs, strict=True)
    ]
    found = []
    for offsets in itertools.product(*(range(w) for w in widest)):
        position = [start + offset for start, offset in zip(starts, offsets, strict=True)]
        test: Value | None = None
        for k, offset in enumerate(offsets):
            if offset and not even[k]:
                end = number(_end(at[lead + k], spatial[k], outputs[k]))
                test = both(test, make("lt", number(position[k]), end))
        value = read_if(x, [*at[:lead], *position], test, compute_dtype(x.dtype), outside)
        found.append(Element(value, number(flatten(position, dense_strides(spatial))), test))
    return found


def _divisor(
    at: At, lead: int, spatial: Sequence[Expr], outputs: Sequence[Expr], dtype: torch.dtype
) -> Value:
    """The number of elements of a window."""
    total = const(1, dtype)
    for k, size in enumerate(spatial):
        here = at[lead + k]
        if isinstance(size, int) and isinstance(outputs[k], int) and size % outputs[k] == 0:
            width = const(size // outputs[k], dtype)  # type: ignore[operator]
        else:
            width = cast(
                make("sub", number(_end(here, size, outputs[k])), number(_start(here, size, outputs[k]))),
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
            return call_fallback(ctx, ctx.node.target, [x, list(sizes)], {})

        def divisor(at: At) -> Value:
            return _divisor(at, lead, spatial, outputs, dtype)

        counts = [w for w in widest if w is not None]
        if product(counts) <= LARGEST_WINDOW:  # type: ignore[operator]

            def average(at: At) -> Value:
                found = _elements(x, at, outputs, counts, 0)
                total = found[0].value
                for element in found[1:]:
                    total = make("add", total, element.value)
                return make("div", total, divisor(at))

            return ctx.pointwise(average, label="avg_pool")
        uneven = any(n % o for n, o in zip(spatial, outputs, strict=True))  # type: ignore[operator]
        if uneven and ctx.strides()[-1] == 1:  # each element would be divided into its window: slower
            return call_fallback(ctx, ctx.node.target, [x, list(sizes)], {})
        total = _window_sum(ctx, x, outputs, counts, dtype)
        return ctx.pointwise(lambda at: make("div", total.at(at), divisor(at)), label="avg_pool")

    return lowering


def _window_sum(
    ctx: Lowering, x: Ref, outputs: Sequence[Expr], widest: Sequence[int], dtype: torch.dtype
) -> Ref:
    """The sum of each window, by a reduction over the widest one."""
    lead, rank = len(x.sizes) - len(outputs), len(outputs)
    spatial, domain = x.sizes[lead:], [*x.sizes[:lead], *outputs, *widest]

    def body(at: At) -> Value:
        test: Value | None = None
        position = list(at[:lead])
        for k in range(rank):
            here = _start(at[lead + k], spatial[k], outputs[k]) + at[lead + rank + k]
            if spatial[k] % outputs[k]:  # type: ignore[operator]
                end = number(_end(at[lead + k], spatial[k], outputs[k]))
                test = both(test, make("lt", number(here), end))
            position.append(here)
        return read_if(x, position, test, dtype, 0)

    (total,) = ctx.reduction("sum", body, domain, range(lead + rank, len(domain)), dtype, "avg_pool")
    return total.reshape((*x.sizes[:lead], *outputs))


lower(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)(_adaptive_avg(2))
lower(aten._adaptive_avg_pool3d.default)(_adaptive_avg(3))


def _adaptive_max(rank: int) -> Any:
    def lowering(ctx: Lowering, x: Ref, sizes: Sequence[Any]) -> Any:
        outputs, spatial = ctx.shape(0)[-rank:], x.sizes[-rank:]
        widest = [_widest(n, o) for n, o in zip(spatial, outputs, strict=True)]
        if any(w is None for w in widest) or product(widest) > LARGEST_WINDOW:  # type: ignore[arg-type,operator]
            return call_fallback(ctx, ctx.node.target, [x, list(sizes)], {})
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


# gradients ---------------------------------------------------------------------------------------


def _gathered(
    dy: Ref,
    at: At,
    lead: int,
    choices: Sequence[Sequence[tuple[Index, Value | None]]],
    dtype: torch.dtype,
    divided: Any,
) -> Value:
    """The sum over the windows that hold an element; choices: for each dimension the windows that may."""
    total: Value | None = None
    for windows_ in itertools.product(*choices):
        test: Value | None = None
        for _, one in windows_:
            test = both(test, one)
        position = [*at[:lead], *(place for place, _ in windows_)]
        value = divided(read_if(dy, position, test, dtype, 0), position)
        total = value if total is None else make("add", total, value)
    assert total is not None
    return total


def _candidates(
    w: Windows, k: int, here: Index, size: Expr, outputs: Expr
) -> list[tuple[Index, Value | None]]:
    """The windows of one dimension that may hold the element, in ascending order, each with its test."""
    kernel, stride, padding = w.kernel[k], w.stride[k], w.padding[k]
    exact = kernel == stride and padding == 0 and isinstance(size, int) and isinstance(outputs, int)
    if exact and outputs * stride == size:
        return [(floordiv(here, stride), None)]
    newest = floordiv(here + padding, stride)
    found: list[tuple[Index, Value | None]] = []
    for back in reversed(range(-(-kernel // stride))):
        window = newest - back
        test = inside(window, outputs, low=back > 0)
        if kernel % stride or kernel < stride:
            end = window * stride + (kernel - padding)
            test = both(test, make("lt", number(here), number(end)))
        found.append((window, test))
    return found


def _avg_backward(rank: int) -> Any:
    def lowering(
        ctx: Lowering,
        dy: Ref,
        x: Ref,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Any,
    ) -> Ref:
        w = windows(rank, kernel, stride, padding)
        dtype = compute_dtype(dy.dtype)
        lead, spatial, outputs = len(x.sizes) - rank, x.sizes[-rank:], dy.sizes[-rank:]
        if any(-(-k // s) > 8 for k, s in zip(w.kernel, w.stride, strict=True)):
            args = [dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override]
            return call_fallback(ctx, ctx.node.target, args, {})

        def size_of(position: At) -> Value:
            if divisor_override is not None:
                return const(divisor_override, dtype)
            total = const(1, dtype)
            for k in range(rank):
                begin = position[lead + k] * w.stride[k] - w.padding[k]
                total = make("mul", total, _window_size(begin, k))
            return total

        def _window_size(begin: Index, k: int) -> Value:
            if count_include_pad:
                part = reach(begin, w.kernel[k], spatial[k], w.padding[k], dtype)
                return part if ceil_mode else const(w.kernel[k], dtype)
            if w.padding[k] == 0 and not ceil_mode:
                return const(w.kernel[k], dtype)
            end = make("minimum", number(begin + w.kernel[k]), number(Index(spatial[k])))
            first = make("maximum", number(begin), const(0, torch.int64))
            return cast(
                make("maximum", make("sub", end, first), const(1, torch.int64)), dtype
            )  # 0: no window

        def body(at: At) -> Value:
            choices = [_candidates(w, k, at[lead + k], spatial[k], outputs[k]) for k in range(rank)]
            return _gathered(
                dy, at, lead, choices, dtype, lambda value, position: make("div", value, size_of(position))
            )

        return ctx.pointwise(body, label="avg_pool_backward")

    return lowering


lower(aten.avg_pool2d_backward.default)(_avg_backward(2))
lower(aten.avg_pool3d_backward.default)(_avg_backward(3))


def _adaptive_avg_backward(rank: int) -> Any:
    def lowering(ctx: Lowering, dy: Ref, x: Ref) -> Ref:
        dtype, lead = compute_dtype(dy.dtype), len(x.sizes) - rank
        spatial, outputs = x.sizes[-rank:], dy.sizes[-rank:]
        known = all(isinstance(v, int) for v in (*spatial, *outputs))
        whole = all(size == 1 for size in outputs)
        if not whole and (not known or any(n % o for n, o in zip(spatial, outputs, strict=True))):  # type: ignore[operator]
            return call_fallback(
                ctx, ctx.node.target, [dy, x], {}
            )  # uneven: divisions cost more than they save

        def choices(here: Index, size: Expr, output: Expr) -> list[tuple[Index, Value | None]]:
            """The one window that holds an element."""
            return [(Index() if output == 1 else floordiv(here, size // output), None)]  # type: ignore[operator]

        def divided(value: Value, position: At) -> Value:
            if whole:
                return make("div", value, as_number(product(spatial), dtype))
            return make("div", value, _divisor(position, lead, spatial, outputs, dtype))

        def body(at: At) -> Value:
            options = [choices(at[lead + k], spatial[k], outputs[k]) for k in range(rank)]
            return _gathered(dy, at, lead, options, dtype, divided)

        return ctx.pointwise(body, label="avg_pool_backward")

    return lowering


lower(aten._adaptive_avg_pool2d_backward.default)(_adaptive_avg_backward(2))
lower(aten._adaptive_avg_pool3d_backward.default)(_adaptive_avg_backward(3))
