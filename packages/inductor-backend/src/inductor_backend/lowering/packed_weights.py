"""Lowers matmuls, convolutions and LSTM layers with packed weights to calls of our native
kernels.

Convolutions read and write channels-last buffers (those with few channels read contiguous ones,
too). Operands that have the right strides are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inductor_backend.ir.index_expr import Expr, contiguous_strides
from inductor_backend.ir.nodes import Strided, same_strides
from inductor_backend.ir.views import Ref
from inductor_backend.kernels import packed_ops, packed_weights
from inductor_backend.kernels.quantized import quantized_mm
from inductor_backend.lowering.context import Lowering, last_strides, lower
from inductor_backend.lowering.matmul import matrix as as_blas_has_it
from inductor_backend.lowering.matmul import operands


@lower(packed_ops.convolution)
def convolution(
    ctx: Lowering,
    x: Ref,
    weight: Ref,
    bias: Ref | None,
    numbers: Sequence[Any],
    epilogue: str = "none",
    residual: Ref | None = None,
    last_epilogue: str = "none",
    scale: Ref | None = None,
) -> Ref:
    g = packed_ops.geometry(numbers)
    x = x if len(x.sizes) == 4 else x.unsqueeze(2)  # a sequence is an image of one row
    layout = x.strided()
    contiguous = (
        g.bordered and layout is not None and same_strides(layout, contiguous_strides(x.sizes))
    )
    operand = ctx.strided(x, contiguous_strides(x.sizes) if contiguous else last_strides(x.sizes))
    sizes = ctx.shape()
    added = None if residual is None else ctx.strided(residual, last_strides(sizes))
    offset = None if bias is None else ctx.strided(bias, (1,))
    factor = None if scale is None else ctx.strided(scale, (1,))
    arguments = [operand, ctx.strided(weight), offset, list(numbers), contiguous, factor]
    return ctx.extern(
        ctx.node.target,
        arguments,
        strides=last_strides(sizes),
        epilogue=epilogue,
        residual=added,
        last_epilogue=last_epilogue,
    )


@lower(packed_ops.pack)
def pack(ctx: Lowering, weight: Ref, numbers: Sequence[Any]) -> Ref:
    """Packs a weight that is no constant, in each call."""
    weight = weight if len(weight.sizes) != 3 else weight.unsqueeze(2)
    layout = weight.strided()
    g = packed_ops.geometry(numbers)
    if layout is None or not packed_weights.packable(g, layout.sizes, layout.strides):
        return _pack(ctx, ctx.strided(weight, contiguous_strides(weight.sizes)), numbers)
    return _pack(ctx, Strided(weight.buffer.name, layout), numbers)


def _pack(ctx: Lowering, weight: Strided, numbers: Sequence[Any]) -> Ref:
    return ctx.extern(ctx.node.target, [weight, list(numbers)], strides=(1,))


@lower(packed_ops.linear)
def linear(
    ctx: Lowering,
    x: Ref,
    weight: Ref,
    bias: Ref | None,
    count: int,
    epilogue: str = "none",
    residual: Ref | None = None,
    last_epilogue: str = "none",
    matrix: Ref | None = None,
) -> Ref:
    sizes = ctx.shape()
    added = None if residual is None else _rows(ctx, residual)
    offset = None if bias is None else ctx.strided(bias, (1,))
    beside = [] if matrix is None else [as_blas_has_it(ctx, matrix)]
    return ctx.extern(
        ctx.node.target,
        [_rows(ctx, x), ctx.strided(weight), offset, count, *beside],
        strides=contiguous_strides(sizes),
        epilogue=epilogue,
        residual=added,
        last_epilogue=last_epilogue,
    )


@lower(quantized_mm)
def quantized(
    ctx: Lowering,
    x: Ref,
    weight: Ref,
    bias: Ref | None,
    factor: Ref | None,
    scale: Ref | float | None,
    zero: Ref | float | None,
    group: int,
    at_once: bool,
    nibbles: int = 0,
) -> Ref:
    rows = [None if row is None else ctx.strided(row, (1,)) for row in (bias, factor)]
    numbers = [ctx.strided(of) if isinstance(of, Ref) else of for of in (scale, zero)]
    arguments = [*operands(ctx, x, weight), *rows, *numbers, group, at_once, nibbles]
    return ctx.extern(ctx.node.target, arguments, label="mm")


@lower(packed_ops.lstm)
def lstm(
    ctx: Lowering, inputs: Ref, weight: Ref, hidden: Ref, cells: Ref, steps: Expr, backwards: bool
) -> Ref:
    tensors = [
        ctx.strided(value, contiguous_strides(value.sizes))
        for value in (inputs, weight, hidden, cells)
    ]
    return ctx.extern(ctx.node.target, [*tensors, steps, backwards], strides=(1,))


def _rows(ctx: Lowering, x: Ref) -> Strided:
    """Returns a matrix with dense rows that do not overlap."""
    layout = x.strided()
    if layout is not None and layout.strides[1] == 1:
        rows, columns = layout.strides[0], layout.sizes[1]
        apart = isinstance(rows, int) and isinstance(columns, int) and rows >= columns
        if apart or rows == columns:
            return Strided(x.buffer.name, layout)
    return ctx.strided(x, contiguous_strides(x.sizes))
