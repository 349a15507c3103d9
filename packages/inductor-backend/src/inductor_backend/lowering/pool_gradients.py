"""Gradients of max pooling.

In: graph nodes. Out: on GPUs a pointwise node: each element looks at the windows that it lies in, and takes the gradients of
those that chose it; on CPUs a scatter. What always holds: an element's terms are added in the order of the windows,
in float32 at least; every run gives the same bits.

The gather needs no zeros to begin with, and what made the operand (a normalisation and an activation, mostly) is not made
again for an operator that asks for its sizes only. It becomes part of the loops that read it.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from inductor_backend.index_expr import Index, flatten, floordiv
from inductor_backend.index_expr import contiguous_strides as dense_strides
from inductor_backend.loop_ir.values import Value, cast, const, make
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.fallback import call_fallback
from inductor_backend.lowering.pools import At, Windows, both, inside, number, read_if, windows
from inductor_backend.lowering.registry import Lowering, aten, lower
from inductor_backend.lowering.scatter import to_positions
from inductor_backend.ops import compute_dtype
from tracer_core.plugin_api import OFFSETS_IN_WINDOWS

#: Windows that an element may lie in: for more of them a scatter reads less.
MOST_WINDOWS = 9


def offsets_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """Where a saved index was kept as its place in the window: the node of those places."""
    if not node.meta.get(OFFSETS_IN_WINDOWS):
        return None
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.meta["val"].dtype is torch.int8:
            return one
        waiting += one.all_input_nodes
    raise AssertionError(f"{node.name} is not made from offsets")


def _gathered(rank: int) -> Any:
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
        for one in steps:
            count *= len(one)
        if count > MOST_WINDOWS:
            return call_fallback(  # type: ignore[no-any-return]
                ctx, ctx.node.target, [dy, x, kernel, stride, padding, dilation, ceil_mode, indices], {}
            )
        places = offsets_of(ctx.node.args[-1])  # type: ignore[arg-type]
        chosen = indices if places is None else ctx.refs[places]
        dtype, sizes = compute_dtype(dy.dtype), ctx.shape()

        def body(at: At) -> Value:
            total = None
            for back in itertools.product(*(reversed(one) for one in steps)):
                term = _term(w, dy, chosen, places is not None, sizes, at, back, dtype)
                total = term if total is None else make("add", total, term)
            assert total is not None
            return total

        return ctx.pointwise(body, sizes, ctx.meta().dtype, ctx.strides(), label="max_pool_gradient")

    return lowering


def _term(
    w: Windows, dy: Ref, chosen: Ref, offsets: bool, sizes: Any, at: At, back: tuple[int, ...], dtype: torch.dtype
) -> Value:
    """The gradient of the window that begins `back` strides before the last one that holds the element, if it chose it."""
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


lower(aten.max_pool2d_with_indices_backward.default)(_gathered(2))
lower(aten.max_pool3d_with_indices_backward.default)(_gathered(3))
