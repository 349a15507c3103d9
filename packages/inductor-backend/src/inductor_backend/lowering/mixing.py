"""Lowers matmuls that mix a few channels which are not contiguous, as loops (CPU).

A linear layer over the heads of attention scores multiplies rows of a few elements that lie a whole image
apart. BLAS wants a copy with these elements side by side, has columns too short for its kernels, and
leaves a result in that order, which all that follows reads across. A loop over the contiguous dimension
adds the few products in vectors, and its result lies as the operand does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, product
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.limits import MAX_MIXED_CHANNELS
from inductor_backend.lowering.context import Lowering, aten
from tracer_core.plugin_api import Trait, overloads_with

#: Least elements that follow each other in memory: loops over fewer leave vectors empty.
LEAST_CONTIGUOUS = 16

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
_VIEWS = overloads_with(Trait.RESHAPES) | {aten.clone.default}


def mixed(ctx: Lowering, rows: Any, b: Ref, bias: Ref | None = None) -> Ref | None:
    """Returns ``rows @ b + bias`` as such a loop, of the node's shape; None where it is no such
    matmul. rows: the node of the operand."""
    few = all(isinstance(n, int) and 1 < n <= MAX_MIXED_CHANNELS for n in b.sizes)
    if ctx.gpu or not few or len(b.sizes) != 2 or b.dtype not in _DTYPES:
        return None
    channels, columns = b.sizes
    source = _before_views(ctx, rows, channels)
    order = None if source is None else _memory_order(ctx, source)
    if source is None or order is None:
        return None
    last = len(source.sizes) - 1
    dtype = compute_dtype(b.dtype)

    def body(at: Sequence[Index]) -> Value:
        place = [at[order.index(dim)] for dim in range(last + 1)]
        total = const(0, dtype)  # as BLAS begins: -0 is nowhere in its sums
        if bias is not None:
            total = cast(bias.at(broadcast((place[last],), bias.sizes)), dtype)
        for channel in range(channels):
            term = cast(source.at((*place[:last], Index(channel))), dtype)
            factor = cast(b.at((Index(channel), place[last])), dtype)
            total = make("add", total, make("mul", term, factor))
        return total

    sizes = [columns if dim == last else source.sizes[dim] for dim in order]
    result = ctx.pointwise(body, sizes, b.dtype, contiguous_strides(sizes), label="mix")
    return result.permute([order.index(dim) for dim in range(last + 1)]).reshape(ctx.shape())


def _before_views(ctx: Lowering, rows: torch.fx.Node, channels: Expr) -> Ref | None:
    """Returns the tensor whose leading dimensions the matrix has as rows."""
    node, count = rows, rows.meta["val"].shape[0]
    while isinstance(ref := ctx.refs.get(node), Ref):
        sizes = ref.sizes
        same = sizes and sizes[-1] == channels and product(sizes[:-1]) == ctx.sizes.expr(count)
        if not same:
            return None
        if len(sizes) > 2 and ref.buffer.layout.flat(ref.index).affine:
            return ref
        if node.target not in _VIEWS or not isinstance(node.args[0], torch.fx.Node):
            return ref if len(sizes) == 2 else None
        node = node.args[0]
    return None


def _memory_order(ctx: Lowering, source: Ref) -> list[int] | None:
    """Returns its dimensions as they lie in memory, outermost first; None where channels are side by
    side, or no other dimension is."""
    flat, last = source.buffer.layout.flat(source.index), len(source.sizes) - 1
    if not flat.affine:
        return None
    steps = [ctx.sizes.hint(flat.coefficient(dim)) for dim in range(last + 1)]
    sizes = [ctx.sizes.hint(size) for size in source.sizes]
    if steps[last] <= 1 or min(steps) < 0:
        return None
    order = sorted(range(last + 1), key=lambda dim: (-steps[dim], dim))
    lane = next((dim for dim in range(last) if steps[dim] == 1 and sizes[dim] > 1), None)
    if lane is None or sizes[lane] < LEAST_CONTIGUOUS:
        return None
    return [*(dim for dim in order if dim != lane), lane]
