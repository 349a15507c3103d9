"""Lowers the gradients of pooling to gathers: each element sums the gradients of the windows that
contain it (for max pooling: those that chose it). Max pooling on CPUs scatters.

Terms are added in the order of the windows, in float32 at least, so every run gives the same bits.
A gather needs no zero-filled buffer, does not recompute the operand (mostly a normalization and an
activation), of which only the sizes are needed, and fuses with its readers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Expr, Index, flatten, floordiv, product
from inductor_backend.ir.index_expr import contiguous_strides as dense_strides
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.limits import MAX_GATHERED_WINDOWS
from inductor_backend.lowering.adaptive_pools import window_size
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten
from inductor_backend.lowering.pools import (
    PoolWindows,
    both,
    inside,
    number,
    reach,
    read_if,
    windows,
)
from inductor_backend.lowering.reduction import as_number
from inductor_backend.lowering.scatter import to_positions
from tracer_core.plugin_api import OFFSETS_IN_WINDOWS


def offsets_of(indices: torch.fx.Node, w: PoolWindows, width: Expr) -> torch.fx.Node | None:
    """Returns the node of offsets within these windows over an image of this width, where the graph
    rebuilds the indices from one, else None.

    Indices that another part of the graph rebuilds are an input, and a program may read the indices
    of one pooling with the windows of another: there the indices themselves are read.
    """
    lie = (tuple(w.kernel), tuple(w.stride), tuple(w.padding), width)
    if indices.meta.get(OFFSETS_IN_WINDOWS) != lie or any(dilation != 1 for dilation in w.dilation):
        return None
    waiting = [indices]
    while waiting:
        node = waiting.pop()
        if node.meta["val"].dtype is torch.int8:
            return node
        waiting += node.all_input_nodes
    return None


def _max_backward(rank: int) -> Any:
    def lowering(
        ctx: Lowering,
        dy: Ref,
        x: Ref,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: bool,
        indices: Ref,
    ) -> Ref:
        if not ctx.gpu:
            return to_positions(ctx, dy, indices, rank)
        w = windows(rank, kernel, stride, padding, dilation)
        steps = [
            range(-(-((size - 1) * d + 1) // s))
            for size, d, s in zip(w.kernel, w.dilation, w.stride, strict=True)
        ]
        count = 1
        for step in steps:
            count *= len(step)
        if count > MAX_GATHERED_WINDOWS:
            return call_aten(ctx, dy, x, kernel, stride, padding, dilation, ceil_mode, indices)
        dtype, sizes = compute_dtype(dy.dtype), ctx.shape()
        places = offsets_of(ctx.node.args[-1], w, sizes[-1])  # type: ignore[arg-type]
        chosen = indices if places is None else ctx.refs[places]

        def body(at: At) -> Value:
            total = None
            for back in itertools.product(*(reversed(step) for step in steps)):
                term = _term(w, dy, chosen, places is not None, sizes, at, back, dtype)
                total = term if total is None else make("add", total, term)
            assert total is not None
            return total

        return ctx.pointwise(
            body, sizes, ctx.meta().dtype, ctx.strides(), label="max_pool_gradient"
        )

    return lowering


def _term(
    w: PoolWindows,
    dy: Ref,
    chosen: Ref,
    offsets: bool,
    sizes: Any,
    at: At,
    back: tuple[int, ...],
    dtype: torch.dtype,
) -> Value:
    """Returns the gradient of the window `back` strides before the last one that contains the
    element, if that window chose it; else 0."""
    lead = len(sizes) - w.rank
    position, inner, test = list(at[:lead]), [], None
    for k, step in enumerate(back):
        there, outputs = at[lead + k] + w.padding[k], dy.sizes[lead + k]
        window = floordiv(there, w.stride[k]) - step
        last = (sizes[lead + k] - 1 + w.padding[k]) // w.stride[k] - step
        fits = isinstance(last, int) and isinstance(outputs, int) and last < outputs
        test = both(test, inside(window, outputs, step > 0, not fits))
        within = there - window * w.stride[k]
        if (step + 1) * w.stride[k] > (w.kernel[k] - 1) * w.dilation[k] + 1:
            test = both(test, inside(within, (w.kernel[k] - 1) * w.dilation[k] + 1, low=False))
        position.append(window)
        inner.append(within)
    spatial = (w.kernel, inner) if offsets else (sizes[lead:], at[lead:])
    wanted: Index = flatten(spatial[1], dense_strides(spatial[0]))
    index = read_if(chosen, position, test, torch.int64, -1)
    gradient = read_if(dy, position, test, dtype, 0)
    return make("where", make("eq", index, number(wanted)), cast(gradient, dtype), const(0, dtype))


lower(aten.max_pool2d_with_indices_backward.default)(_max_backward(2))
lower(aten.max_pool3d_with_indices_backward.default)(_max_backward(3))


def _sum_of_windows(
    dy: Ref,
    at: At,
    lead: int,
    choices: Sequence[Sequence[tuple[Index, Value | None]]],
    dtype: torch.dtype,
    divided: Any,
) -> Value:
    """Sums over the windows that contain an element. choices: for each dimension the candidate
    windows."""
    total: Value | None = None
    for windows_ in itertools.product(*choices):
        test: Value | None = None
        for _, condition in windows_:
            test = both(test, condition)
        position = [*at[:lead], *(place for place, _ in windows_)]
        value = divided(read_if(dy, position, test, dtype, 0), position)
        total = value if total is None else make("add", total, value)
    assert total is not None
    return total


def _candidates(
    w: PoolWindows, k: int, here: Index, size: Expr, outputs: Expr
) -> list[tuple[Index, Value | None]]:
    """Returns the windows of one dimension that may contain the element, in ascending order, each
    with its test."""
    kernel, stride, padding = w.kernel[k], w.stride[k], w.padding[k]
    exact = kernel == stride and padding == 0 and isinstance(size, int) and isinstance(outputs, int)
    if exact and outputs * stride == size:
        return [(floordiv(here, stride), None)]
    newest = floordiv(here + padding, stride)
    indexes: list[tuple[Index, Value | None]] = []
    for back in reversed(range(-(-kernel // stride))):
        window = newest - back
        test = inside(window, outputs, low=back > 0)
        if kernel % stride or kernel < stride:
            end = window * stride + (kernel - padding)
            test = both(test, make("lt", number(here), number(end)))
        indexes.append((window, test))
    return indexes


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
            how = (kernel, stride, padding, ceil_mode, count_include_pad, divisor_override)
            return call_aten(ctx, dy, x, *how)

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
            # 0: no window
            return cast(make("maximum", make("sub", end, first), const(1, torch.int64)), dtype)

        def body(at: At) -> Value:
            choices = [_candidates(w, k, at[lead + k], spatial[k], outputs[k]) for k in range(rank)]
            return _sum_of_windows(
                dy,
                at,
                lead,
                choices,
                dtype,
                lambda value, position: make("div", value, size_of(position)),
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
        has_all = all(size == 1 for size in outputs)
        if not has_all and (not known or any(n % o for n, o in zip(spatial, outputs, strict=True))):
            return call_aten(ctx, dy, x)  # uneven: divisions cost more than they save

        def choices(here: Index, size: Expr, output: Expr) -> list[tuple[Index, Value | None]]:
            """Returns the one window that contains an element."""
            return [(Index() if output == 1 else floordiv(here, size // output), None)]

        def divided(value: Value, position: At) -> Value:
            if has_all:
                return make("div", value, as_number(product(spatial), dtype))
            return make("div", value, window_size(position, lead, spatial, outputs, dtype))

        def body(at: At) -> Value:
            options = [choices(at[lead + k], spatial[k], outputs[k]) for k in range(rank)]
            return _sum_of_windows(dy, at, lead, options, dtype, divided)

        return ctx.pointwise(body, label="avg_pool_backward")

    return lowering


lower(aten._adaptive_avg_pool2d_backward.default)(_adaptive_avg_backward(2))
lower(aten._adaptive_avg_pool3d_backward.default)(_adaptive_avg_backward(3))
