"""Operators that say by strides and an absolute offset where in their operand's memory they read or write.

In: graph nodes. Out: loops over the operand's elements in the order of eager's memory. What always holds: ATen's own
kernel is only called with an offset that counts from where the operand begins, because in our program that is somewhere
in an arena.
"""

from __future__ import annotations

from typing import Any

from inductor_backend.errors import unsupported
from inductor_backend.index_expr import simplify
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.registry import Lowering, aten, lower
from inductor_backend.lowering.scatter import Target
from inductor_backend.lowering.views import as_strided, counts_in_an_input, flat_memory, is_read_only_input


@lower(aten.as_strided_copy.default)
def as_strided_copy(ctx: Lowering, x: Ref, sizes: Any, strides: Any, offset: Any = None) -> Ref:
    return ctx.pointwise(as_strided(ctx, x, sizes, strides, offset).at, ctx.shape(), x.dtype, ctx.strides())


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    ctx: Lowering, x: Ref, source: Ref, sizes: Any, strides: Any, offset: Any = None
) -> Ref:
    memory = None if counts_in_an_input(ctx, x, offset) else flat_memory(ctx, x, source.sizes, strides, offset)
    if memory is None:
        return _by_aten(ctx, x, source, sizes, strides, offset)
    flat, order, place = memory
    target = Target.filled(ctx, flat.at, flat.sizes, None, x.dtype)
    target.scatter("set", source.sizes, lambda at: [place(at)], source.at)
    ordered = Ref.of(target.buffer).reshape(tuple(x.sizes[dim] for dim in order))
    return ordered.permute([order.index(dim) for dim in range(len(order))])


def _by_aten(ctx: Lowering, x: Ref, source: Ref, sizes: Any, strides: Any, offset: Any) -> Ref:
    """Where the operand begins, as no offset says to ATen; anywhere in the memory of an input."""
    if is_read_only_input(ctx, x):
        given = [ctx.strided(x), ctx.strided(source), list(sizes), list(strides), offset]
        read: Ref = ctx.extern(ctx.node.target, given, fallback=True)
        return read
    if counts_in_an_input(ctx, x, offset):
        raise unsupported("lower", "as_strided_scatter into an input that is written to", ctx.node)
    value = ctx.node.args[0].meta["val"]  # type: ignore[union-attr]
    start = ctx.sizes.expr(value.storage_offset())
    if offset is not None and simplify(ctx.sizes.expr(offset) - start) != 0:
        raise unsupported("lower", "as_strided_scatter into a tensor that is not dense", ctx.node)
    operands = [ctx.strided(x, ctx.sizes.exprs(value.stride())), ctx.strided(source)]
    found: Ref = ctx.extern(ctx.node.target, [*operands, list(sizes), list(strides)])
    return found
