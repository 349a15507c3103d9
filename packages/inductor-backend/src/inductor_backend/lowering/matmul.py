"""Lowers matmuls and attention to extern nodes.

Operands are views without a copy wherever strides describe them and the operator supports these.
"""

from __future__ import annotations

from typing import Any

from inductor_backend.ir.nodes import BufferLayout, Strided
from inductor_backend.ir.views import Ref
from inductor_backend.kernels import unaligned_gemm
from inductor_backend.lowering.context import Lowering, aten, lower

#: Bytes of a vector load, and the elements from which an operand is copied for it.
VECTOR_BYTES, MIN_COPIED_OPERAND = 16, 1 << 16


def is_blas_matrix(layout: BufferLayout) -> bool:
    """Checks that one of the last two dims has stride 1 and that the other's stride does not
    overlap, as BLAS requires."""
    rows, columns = layout.sizes[-2:]
    a, b = layout.strides[-2:]
    return (b == 1 and (a == columns or _at_least(a, columns))) or (
        a == 1 and (b == rows or _at_least(b, rows))
    )


def _at_least(stride: Any, size: Any) -> bool:
    return isinstance(stride, int) and isinstance(size, int) and stride >= size


def matrix(ctx: Lowering, x: Ref) -> Strided:
    """Returns the operand as BLAS requires it, else a row-major copy (on GPUs that of its transpose
    where its columns are contiguous: the two operands of a gradient's matmuls then share one copy)."""
    layout = x.strided()
    if (
        layout is not None
        and is_blas_matrix(layout)
        and not (ctx.gpu and _misses_vectors(x, layout))
    ):
        return Strided(x.buffer.name, layout)
    if not (ctx.gpu and _columns_are_contiguous(x)):
        copied = ctx.copy(x)
        return Strided(copied.buffer.name, copied.buffer.layout)
    order = [*range(len(x.sizes) - 2), len(x.sizes) - 1, len(x.sizes) - 2]
    copied = ctx.copy(x.permute(order))
    layout = copied.permute(order).strided()
    assert layout is not None
    return Strided(copied.buffer.name, layout)


def _misses_vectors(x: Ref, layout: BufferLayout) -> bool:
    """Checks that a large operand's rows do not begin at multiples of 16 bytes, but a copy's would:
    cuBLAS' tensor core kernels for such operands take several times as long as the copy and those
    for aligned ones."""
    sizes, strides = layout.sizes[-2:], layout.strides[-2:]
    numbers = (*layout.sizes, *layout.strides, layout.offset)
    if not all(isinstance(number, int) for number in numbers):
        return False
    width, numel = x.dtype.itemsize, layout.numel
    length = sizes[1] if strides[1] == 1 else sizes[0]
    steps = (layout.offset, *(stride for stride in layout.strides if stride != 1))
    aligned = all(step * width % VECTOR_BYTES == 0 for step in steps)
    return not aligned and length * width % VECTOR_BYTES == 0 and numel >= MIN_COPIED_OPERAND


def _columns_are_contiguous(x: Ref) -> bool:
    """Checks that the matrix's second element in memory is in the first column, not the first row."""
    flat, last = x.buffer.layout.flat(x.index), len(x.sizes) - 1
    return flat.step(last - 1) == 1 and flat.step(last) != 1


@lower(aten.mm.default, aten.bmm.default)
def mm(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    return ctx.extern(ctx.node.target, [matrix(ctx, a), matrix(ctx, b)])


@lower(unaligned_gemm.mm)
def interleaved_mm(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    return ctx.extern(unaligned_gemm.mm, [matrix(ctx, a), matrix(ctx, b)], label="mm")


@lower(aten.addmm.default, aten.baddbmm.default)
def addmm(ctx: Lowering, bias: Ref, a: Ref, b: Ref, beta: Any = 1, alpha: Any = 1) -> Ref:
    scale = {} if (beta, alpha) == (1, 1) else {"beta": beta, "alpha": alpha}
    operands = [ctx.strided(bias), matrix(ctx, a), matrix(ctx, b)]
    return ctx.extern(ctx.node.target, operands, scale)


@lower(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(ctx: Lowering, query: Ref, key: Ref, value: Ref, *rest: Any, **kwargs: Any) -> Any:
    """Gives the query the strides of the graph: the result is laid out as the query is."""
    used = ctx.used_outputs()

    def operand(x: Any) -> Any:
        return last_dense(ctx, x) if isinstance(x, Ref) else x

    arg: Any = ctx.node.args[0]
    asked = ctx.strided(query, ctx.sizes.exprs(arg.meta["val"].stride()))
    first = asked if asked.layout.strides[-1] == 1 else operand(query)
    args = [first, *(operand(x) for x in (key, value, *rest))]
    named = {name: operand(x) for name, x in kwargs.items()}
    return ctx.externs(ctx.node.target, args, named, used=used, label="attention")


def last_dense(ctx: Lowering, x: Ref) -> Strided:
    """Returns the operand, strided, with a dense last dimension."""
    layout = x.strided()
    if layout is None or layout.strides[-1] != 1:
        copied = ctx.copy(x)
        return Strided(copied.buffer.name, copied.buffer.layout)
    return Strided(x.buffer.name, layout)
