"""Lowers matmuls to extern nodes; on GPUs, a matrix times a vector to a loop.

Operands are views without a copy wherever strides describe them and the operator supports these. A
matrix that is multiplied by a vector is read once: the memory sets the pace, and a loop fuses with
what makes the operands and with what reads the result. The gradients of a layer with one output are
such matmuls, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.graph_meta import is_returned
from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides
from inductor_backend.ir.nodes import BufferKind, BufferLayout, LoopNode, Strided
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.target import in_tensor_cores
from inductor_backend.ir.values import Value, cast, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.kernels import unaligned_gemm
from inductor_backend.kernels.selection import BLOCKED_ROWS
from inductor_backend.kernels.unaligned_gemm import WORK_OF_A_BYTE
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_any
from inductor_backend.lowering.mixing import mixed

#: Bytes of a vector load, and the elements from which an operand is copied for it.
VECTOR_BYTES, MIN_COPIED_OPERAND = 16, 1 << 16

#: Dtypes and least elements of a matrix that a loop multiplies by a vector.
_LOOPED_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})
MIN_LOOPED_MATRIX = 1 << 16


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


def matrix(ctx: Lowering, x: Ref, work: float = 0.0) -> Strided:
    """Returns the operand as BLAS requires it, else a row-major copy, or that of its transpose where
    its columns are contiguous: the two operands of a gradient's matmuls then share one copy (on CPUs
    where the kernels of many rows read either). On GPUs the rows of a copy begin at multiples of 16
    bytes, and two kinds of operands are copied for that: what a loop computes, where the copy is
    written in place of the operand if nothing else reads it, and what is small for the `work` of its
    matmul, in FLOPs."""
    layout = x.strided()
    order = [*range(len(x.sizes) - 2), len(x.sizes) - 1, len(x.sizes) - 2]
    either = ctx.gpu or min(map(ctx.sizes.hint, x.sizes[-2:])) >= BLOCKED_ROWS
    transposed = either and _columns_are_contiguous(x)
    source = x.permute(order) if transposed else x
    strides = aligned_strides(source.sizes, x.dtype) if ctx.gpu else None
    if layout is not None and is_blas_matrix(layout):
        slow = (
            strides is not None
            and _crosses(layout, x.dtype)
            and (
                x.buffer.kind is BufferKind.TEMP
                or work >= WORK_OF_A_BYTE * ctx.sizes.hint(layout.numel) * x.dtype.itemsize
            )
        )
        if not slow and not (ctx.gpu and _misses_vectors(x, layout)):
            return Strided(x.buffer.name, layout)
    copied = ctx.copy(source, strides, exactly=strides is not None)
    result = (copied.permute(order) if transposed else copied).strided()
    assert result is not None
    return Strided(copied.buffer.name, result)


def operands(ctx: Lowering, a: Ref, b: Ref) -> list[Strided]:
    """Returns the two operands of a matmul, or of a batch of them."""
    work = 2.0 * math.prod(map(ctx.sizes.hint, (*a.sizes, b.sizes[-1])))
    return [matrix(ctx, a, work), matrix(ctx, b, work)]


def _crosses(layout: BufferLayout, dtype: torch.dtype) -> bool:
    """Checks that rows (or columns, where these are contiguous) begin at other places than multiples
    of 16 bytes."""
    steps = [step for step in layout.strides if step != 1]
    return any(isinstance(step, int) and step * dtype.itemsize % VECTOR_BYTES for step in steps)


def aligned_strides(sizes: Sequence[Expr], dtype: torch.dtype) -> tuple[Expr, ...] | None:
    """Returns strides with which the rows of a large matrix (or of several) begin at multiples of 16
    bytes. None where they do anyway, and where the GPU has no tensor cores for it."""
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) < len(sizes) or math.prod(numbers) < MIN_COPIED_OPERAND:
        return None
    row = unaligned_gemm.aligned(numbers[-1], dtype)
    if row == numbers[-1] or not in_tensor_cores(dtype, convolution=False):
        return None
    return contiguous_strides((*numbers[:-1], row))


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
    if _is_limited_by_memory(ctx, a, b):
        return ctx.as_output(_loop(ctx, a, b), label="mm")
    result = mixed(ctx, ctx.node.args[0], b)
    if result is not None:
        return result
    strides = aligned_strides(ctx.shape(), ctx.meta().dtype) if ctx.gpu else None
    if strides is not None and not is_returned(ctx.node):
        return ctx.extern(unaligned_gemm.matmul, operands(ctx, a, b), strides=strides, label="mm")
    return ctx.extern(ctx.node.target, operands(ctx, a, b))


@lower(aten._grouped_mm.default)
def grouped_mm(
    ctx: Lowering, a: Ref, b: Ref, offs: Ref | None = None, *rest: Any, **named: Any
) -> Any:
    """Lowers matmuls of rows in groups, each with a matrix of its own, to a call that may have a native
    kernel; other forms to ATen's. offs: where each group ends."""
    form = (len(a.sizes), len(b.sizes), *(value for value in (*rest, *named.values()) if value))
    empty = 0 in (*a.sizes, *b.sizes)
    if ctx.gpu or offs is None or form != (2, 3) or empty or ctx.strides()[1] != 1:
        return call_any(ctx, ctx.node.target, [a, b, offs, *rest], named)
    return ctx.extern(ctx.node.target, [ctx.strided(a), matrix(ctx, b), ctx.strided(offs, (1,))])


def _is_limited_by_memory(ctx: Lowering, a: Ref, b: Ref) -> bool:
    """Checks that, on a GPU, one of the three sizes of a large matmul is 1, and that a loop is quicker
    than cuBLAS: an outer product, one row times an ``nn.Linear``'s weight, and a vector times a matrix
    that a loop computes, which then needs no memory."""
    if not ctx.gpu or a.dtype not in _LOOPED_DTYPES:
        return False
    rows, terms, columns = *a.sizes[-2:], b.sizes[-1]
    if 1 not in (rows, terms, columns):
        return False
    if math.prod(map(ctx.sizes.hint, (*a.sizes, columns))) < MIN_LOOPED_MATRIX:
        return False
    if terms == 1:
        return True
    weights = rows == 1 and len(b.sizes) == 2 and _along_terms(a, b)
    return weights or _is_computed(ctx, b if rows == 1 else a)


def _is_computed(ctx: Lowering, x: Ref) -> bool:
    """Checks that a loop computes a matrix."""
    writers = ctx.program.writers().get(x.buffer.name, ())
    return bool(writers) and all(isinstance(node, LoopNode) for node in writers)


def _along_terms(a: Ref, b: Ref) -> bool:
    """Checks that the terms of a vector and a matrix are contiguous in the matrix."""
    return _columns_are_contiguous(b) if a.sizes[-2] == 1 else not _columns_are_contiguous(a)


def _loop(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    """Returns a matmul, or a batch of them, as a loop over its elements and terms, in float32."""
    dtype, rank = compute_dtype(a.dtype), len(a.sizes) + 1
    sizes = (*a.sizes[:-1], b.sizes[-1], a.sizes[-1])
    loops = [p for p, size in enumerate(sizes) if size != 1 or p == rank - 1]
    if not _along_terms(a, b):  # as the matrix lies in memory, so that it fuses with other sums
        loops.sort(key=lambda p: (p >= rank - 3, p != rank - 1))

    def term(at: Sequence[Index]) -> Value:
        index = dict(zip(loops, at, strict=True))
        *batch, row, column, place = (index.get(p, Index()) for p in range(rank))
        left, right = a.at((*batch, row, place)), b.at((*batch, place, column))
        return make("mul", cast(left, dtype), cast(right, dtype))

    domain, terms = [sizes[p] for p in loops], loops.index(rank - 1)
    (total,) = ctx.reduction("sum", term, domain, (terms,), dtype, label="mm")
    return total.reshape(sizes[:-1])


@lower(unaligned_gemm.mm)
def interleaved_mm(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    return ctx.extern(unaligned_gemm.mm, operands(ctx, a, b), label="mm")


@lower(aten.addmm.default, aten.baddbmm.default)
def addmm(ctx: Lowering, bias: Ref, a: Ref, b: Ref, beta: Any = 1, alpha: Any = 1) -> Ref:
    if (beta, alpha) == (1, 1) and _is_limited_by_memory(ctx, a, b):
        return _plus_bias(ctx, _loop(ctx, a, b), bias)
    if (beta, alpha) == (1, 1) and len(bias.sizes) == 1:
        result = mixed(ctx, ctx.node.args[1], b, bias)
        if result is not None:
            return result
    scale = {} if (beta, alpha) == (1, 1) else {"beta": beta, "alpha": alpha}
    return ctx.extern(ctx.node.target, [ctx.strided(bias), *operands(ctx, a, b)], scale)


def _plus_bias(ctx: Lowering, total: Ref, bias: Ref) -> Ref:
    def body(at: Sequence[Index]) -> Value:
        added = bias.at(broadcast(at, bias.sizes))
        return make("add", total.at(at), cast(added, total.dtype))

    return ctx.pointwise(body)
