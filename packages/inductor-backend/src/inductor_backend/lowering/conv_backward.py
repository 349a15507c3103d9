"""Lowers convolution_backward to one extern node per gradient, so that each may use its native
kernels, and the bias's gradient to a sum, which fuses with the loops that compute the output's
gradient.

Gradients that are masked out or unread are not computed. Operands keep eager's strides or are
channels-last, as the results then are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inductor_backend.ir.values import cast
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, last_strides, lower


@lower(aten.convolution_backward.default)
def convolution_backward(
    ctx: Lowering, dy: Ref, x: Ref, weight: Ref, bias_sizes: Any, *rest: Any
) -> tuple[Ref | None, ...]:
    *how, mask = rest
    used, last = ctx.used_outputs(), ctx.node in ctx.last
    wanted = [bool(mask[k]) and k in used for k in range(3)]
    results: list[Ref | None] = [None, None, None]
    operands: list[Any] = []
    if wanted[0] or wanted[1]:
        fakes = [argument.meta["val"] for argument in ctx.node.args[:3]]  # type: ignore[union-attr]
        operands = [
            ctx.strided(ref, last_strides(ref.sizes) if last else ctx.sizes.exprs(fake.stride()))
            for ref, fake in zip((dy, x, weight), fakes, strict=True)
        ]
    for k in range(2):
        if wanted[k]:
            arguments = [*operands, bias_sizes, *how, [k == 0, k == 1, False]]
            strides = last_strides(ctx.shape(k)) if last else None
            results[k] = ctx.externs(ctx.node.target, arguments, used={k}, strides=strides)[k]
    if wanted[2]:
        results[2] = _bias(ctx, dy)
    return tuple(results)


def _bias(ctx: Lowering, dy: Ref) -> Ref:
    """Sums over all dimensions but the channels."""
    dims: Sequence[int] = [k for k in range(len(dy.sizes)) if k != 1]
    dtype, wide = ctx.meta(2).dtype, ctx.sum_dtype(ctx.meta(2).dtype)
    (total,) = ctx.reduction(
        "sum", lambda at: cast(dy.at(at), wide), dy.sizes, dims, wide, "bias_gradient"
    )
    shaped = total.reshape(ctx.shape(2))
    return ctx.pointwise(shaped.at, shaped.sizes, dtype, label="bias_gradient")
