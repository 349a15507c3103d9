"""Lowers convolution to an extern node, on GPUs with a loop for its bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Expr, contiguous_strides
from inductor_backend.ir.nodes import BufferLayout, same_strides
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, last_strides, lower


@lower(aten.convolution.default)
def convolution(ctx: Lowering, x: Ref, weight: Ref, bias: Ref | None, *rest: Any) -> Ref:
    """Operands keep eager's strides (the operator chooses its result's layout by them), unless the
    graph's images are channels-last. On GPUs the bias is added by a loop, which fuses with what
    follows; cuDNN's convolutions in ATen add it in a pass of its own."""
    *_, groups = rest
    if bias is None or not ctx.gpu or groups != 1 or not ctx.meta().dtype.is_floating_point:
        return _call(ctx, x, weight, bias, rest)
    result, shift = _call(ctx, x, weight, None, rest), bias
    dtype = compute_dtype(result.dtype)

    def body(at: At) -> Value:
        return make("add", ctx.element(result, at, dtype), ctx.element(shift, at[1:2], dtype))

    return ctx.pointwise(body, result.sizes, result.dtype, result.buffer.layout.strides, "bias")


def _call(ctx: Lowering, x: Ref, weight: Ref, bias: Ref | None, rest: Sequence[Any]) -> Ref:
    if ctx.node in ctx.last:
        images = [ctx.strided(ref, last_strides(ref.sizes)) for ref in (x, weight)]
        offset = None if bias is None else ctx.strided(bias, (1,))
        return ctx.extern(ctx.node.target, [*images, offset, *rest], strides=ctx.strides())
    fakes = [
        argument.meta["val"] if isinstance(argument, torch.fx.Node) else None
        for argument in ctx.node.args[:2]
    ]
    operands = [
        None if ref is None or fake is None else ctx.strided(ref, _operand_strides(ctx, fake))
        for ref, fake in zip((x, weight), fakes, strict=True)
    ]
    offset = None if bias is None else ctx.strided(bias, (1,))  # as native kernels read it
    return ctx.extern(ctx.node.target, [*operands, offset, *rest])


def _operand_strides(ctx: Lowering, fake: torch.Tensor) -> Sequence[Expr]:
    """Returns eager's strides, but on GPUs row-major ones for a view of three dimensions that is not
    contiguous: ATen copies it to these, slower than a loop that fuses with others."""
    sizes, strides = ctx.sizes.exprs(fake.shape), ctx.sizes.exprs(fake.stride())
    if not ctx.gpu or len(sizes) != 3:
        return strides
    row_major = contiguous_strides(sizes)
    return strides if same_strides(BufferLayout(sizes, strides), row_major) else row_major
