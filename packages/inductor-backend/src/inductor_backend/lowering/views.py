"""Lowers view operators to index maps, without loops, except a `roll` of rows, which stores two
pieces.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index, mod, product, simplify, variables
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.concatenation import store_parts
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten


@lower(operator.getitem)
def getitem(ctx: Lowering, values: Sequence[Any], position: int) -> Any:
    return values[position]


@lower(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
def view(ctx: Lowering, x: Ref, *unused: Any) -> Ref:
    """Reshapes to the node's sizes: all of these operators keep the row-major order of elements."""
    return x.reshape(ctx.shape())


@lower(
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
    aten.lift_fresh.default,
    aten.contiguous.default,
    aten.clone.default,
)
def same(ctx: Lowering, x: Ref, **unused: Any) -> Ref:
    """Returns the operand: outputs and operators copy it where they need another layout."""
    return x


@lower(aten.t.default)
def t(ctx: Lowering, x: Ref) -> Ref:
    return x.permute([1, 0]) if len(x.sizes) == 2 else x


@lower(aten.transpose.int)
def transpose(ctx: Lowering, x: Ref, a: int, b: int) -> Ref:
    order = list(range(len(x.sizes)))
    if order:
        order[a], order[b] = order[b], order[a]
    return x.permute(order)


@lower(aten.permute.default)
def permute(ctx: Lowering, x: Ref, order: Sequence[int]) -> Ref:
    return x.permute([k % len(x.sizes) for k in order])


@lower(aten.expand.default)
def expand(ctx: Lowering, x: Ref, sizes: Any, **unused: Any) -> Ref:
    return x.expand(ctx.shape())


@lower(aten.unsqueeze.default)
def unsqueeze(ctx: Lowering, x: Ref, dim: int) -> Ref:
    return x.unsqueeze(dim % (len(x.sizes) + 1))


@lower(aten.select.int)
def select(ctx: Lowering, x: Ref, dim: int, at: Any) -> Ref:
    dim = dim % len(x.sizes)
    return x.select(dim, element_at(ctx, x.sizes[dim], at))


def element_at(ctx: Lowering, size: Expr, at: Any) -> Expr:
    """Returns a non-negative index of an element that is in range. Raises where the sign of `at` is
    unknown."""
    if ctx.sizes.nonnegative(at):
        return simplify(at)
    if ctx.sizes.nonnegative(-at - 1):
        return simplify(at + size)
    raise unsupported("lower", f"element {at} of {size}: it may count from the end", ctx.node)


def slice_start(ctx: Lowering, size: Expr, start: Any, end: Any, length: Expr, step: int) -> Expr:
    """Returns where a slice of `length` elements begins, with a negative start wrapped and the
    start clamped. Raises where the ranges of the sizes leave it open."""
    start = 0 if start is None else start
    if isinstance(size, int) and isinstance(start, int):
        return min(max(start + size, 0) if start < 0 else start, size)
    if step == 1 and (end is None or (isinstance(end, int) and end >= _NO_END)):
        return simplify(size - length)
    if ctx.sizes.nonnegative(start):
        return simplify(start)
    if ctx.sizes.nonnegative(-start):
        if ctx.sizes.nonnegative(start + size):
            return simplify(start + size)
        if ctx.sizes.nonnegative(-start - size):
            return 0
    raise unsupported(
        "lower", f"a slice from {start} of {size} elements: its begin is not known", ctx.node
    )


#: An ``end`` from which a slice reaches the end of any tensor.
_NO_END = 2**62


@lower(aten.slice.Tensor)
def slice_tensor(
    ctx: Lowering, x: Ref, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Ref:
    dim = dim % len(x.sizes)
    length = ctx.shape()[dim]
    return x.slice(dim, slice_start(ctx, x.sizes[dim], start, end, length, step), length, step)


@lower(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default)
def split(ctx: Lowering, x: Ref, unused: Any, dim: int = 0) -> tuple[Ref, ...]:
    dim = dim % len(x.sizes)
    start: Expr = 0
    parts = []
    for fake in ctx.node.meta["val"]:
        length = ctx.sizes.expr(fake.shape[dim])
        parts.append(x.slice(dim, start, length))
        start = simplify(start + length)
    return tuple(parts)


@lower(aten.unbind.int)
def unbind(ctx: Lowering, x: Ref, dim: int = 0) -> tuple[Ref, ...]:
    dim = dim % len(x.sizes)
    return tuple(x.select(dim, k) for k in range(ctx.sizes.static(x.sizes[dim], "unbind")))


@lower(aten.flip.default)
def flip(ctx: Lowering, x: Ref, dims: Sequence[int]) -> Ref:
    return x.flip([dim % len(x.sizes) for dim in dims]) if x.sizes else x


@lower(aten.roll.default)
def roll(ctx: Lowering, x: Ref, shifts: Any, dims: Any = ()) -> Ref:
    """Remaps outer dimensions; a last dimension is stored as two contiguous pieces."""
    moves = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    where = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    flat = x if where else x.reshape((product(x.sizes),))
    rank = len(flat.sizes)
    moved = [dim % rank for dim in where] if where and rank else [0]
    if not rank or not all(
        isinstance(n, int) for n in (*moves, *(flat.sizes[dim] for dim in moved))
    ):
        return call_aten(ctx, x, shifts, dims)
    result = flat
    for dim, shift in zip(moved, moves, strict=True):
        size = result.sizes[dim]
        if size and shift % size:
            start = size - shift % size
            if dim == rank - 1:
                full = ctx.buffer(result.sizes, result.dtype)
                store_parts(
                    ctx,
                    full,
                    [result.slice(dim, start, shift % size), result.slice(dim, 0, start)],
                    dim,
                    0,
                )
                result = Ref.of(full)
            else:
                position = list(variables(result.sizes))
                position[dim] = mod(position[dim] + start, size)
                result = result.remap(result.sizes, position)
    return result.reshape(x.sizes)


@lower(aten.repeat.default)
def repeat(ctx: Lowering, x: Ref, repeats: Sequence[Any]) -> Ref:
    lead = len(repeats) - len(x.sizes)
    inner = (*[1] * lead, *x.sizes)
    outer = ctx.sizes.exprs(repeats)
    interleaved = [size for pair in zip(outer, inner, strict=True) for size in pair]
    padded = x.reshape(inner)
    position = variables(interleaved)
    wide = padded.remap(interleaved, [position[2 * k + 1] for k in range(len(inner))])
    return wide.reshape(ctx.shape())


@lower(aten.unfold.default)
def unfold(ctx: Lowering, x: Ref, dim: int, size: int, step: int) -> Ref:
    if not x.sizes:
        return x.remap(ctx.shape(), [])  # one element
    dim = dim % len(x.sizes)
    new = variables(ctx.shape())
    position = list(new[:-1])
    position[dim] = new[dim] * step + new[-1]
    return x.remap(ctx.shape(), position)


@lower(aten.diagonal.default)
def diagonal(ctx: Lowering, x: Ref, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Ref:
    rank = len(x.sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    new = list(variables(ctx.shape()))
    along = new.pop()
    position: list[Index] = []
    for k in range(rank):
        if k == dim1:
            position.append(along + max(-offset, 0))
        elif k == dim2:
            position.append(along + max(offset, 0))
        else:
            position.append(new.pop(0))
    return x.remap(ctx.shape(), position)
