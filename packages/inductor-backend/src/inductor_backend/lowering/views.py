"""View operators: index maps, no kernels.

In: graph nodes of view operators. Out: `Ref`s. What always holds: no loop node is made here, except for
`cat` and `stack`, which store each operand into its region of one buffer (narrow ones on GPUs: in one loop).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.errors import unsupported
from inductor_backend.index_expr import Expr, Index, contiguous_strides, mod, product, simplify, variables
from inductor_backend.loop_ir.nodes import Buffer, BufferKind, Store
from inductor_backend.loop_ir.values import cast, const, make
from inductor_backend.loop_ir.views import Ref
from inductor_backend.lowering.fallback import call_fallback
from inductor_backend.lowering.registry import Lowering, aten, last_strides, lower
from inductor_backend.torch_private import storage_key


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
    """All of these keep the row-major order of elements, so the result's sizes say everything."""
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
    """A copy is only a copy where somebody could see it: outputs and operators ask for their layout."""
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
    """An index that is in range, counted from the begin. Raises where it is not known whether it is negative."""
    if ctx.sizes.nonnegative(at):
        return simplify(at)
    if ctx.sizes.nonnegative(-at - 1):
        return simplify(at + size)
    raise unsupported("lower", f"element {at} of {size}: it may count from the end", ctx.node)


def slice_start(ctx: Lowering, size: Expr, start: Any, end: Any, length: Expr, step: int) -> Expr:
    """Where a slice of `length` elements begins: a start that is negative counts from the end, and one beyond
    either end is moved there. Raises where the ranges of the sizes leave it open."""
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
    raise unsupported("lower", f"a slice from {start} of {size} elements: its begin is not known", ctx.node)


#: An ``end`` that means the end of any tensor.
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


@lower(aten.as_strided.default)
def as_strided(ctx: Lowering, x: Ref, sizes: Any, strides: Any, offset: Any = None) -> Ref:
    """Strides count in the memory that eager's `x` has, whatever ours is: where that is dense, its elements in
    the order of eager's memory are what they count in."""
    memory = None if counts_in_an_input(ctx, x, offset) else flat_memory(ctx, x, ctx.shape(), strides, offset)
    if memory is None and (owner := _owner_of_memory(ctx)) is not None:
        memory = flat_memory(ctx, ctx.refs[owner], ctx.shape(), strides, _place(ctx, offset), owner)
    if memory is None and x.buffer.kind is not BufferKind.INPUT:
        x = _input_there(ctx, offset) or x
    if memory is None and is_read_only_input(ctx, x):
        copy: Ref = ctx.extern(
            aten.as_strided_copy.default,
            [ctx.strided(x), list(sizes), list(strides), offset],
            strides=contiguous_strides(ctx.shape()),
            fallback=True,
        )
        return copy
    if memory is None:
        raise unsupported(
            "lower", "as_strided of a tensor that is not dense, or beyond its elements", ctx.node
        )
    flat, _, place = memory
    return flat.remap(ctx.shape(), [place(variables(ctx.shape()))])


def _owner_of_memory(ctx: Lowering) -> torch.fx.Node | None:
    """The node that made the memory in which the operator's first argument lies in eager, as a view of it; None if that is
    an input."""
    node: Any = ctx.node.args[0]
    while node.op == "call_function":
        given = node.all_input_nodes
        if given and isinstance(given[0].meta.get("val"), (tuple, list)):  # an item of what, say, split returned
            given = given[0].all_input_nodes
        sources = [one for one in given if isinstance(one.meta.get("val"), torch.Tensor)]
        mine = storage_key(node.meta["val"])
        source = next((one for one in sources if storage_key(one.meta["val"]) == mine), None)
        if source is None:
            return node if isinstance(ctx.refs.get(node), Ref) else None
        node = source
    return None


def _input_there(ctx: Lowering, offset: Any) -> Ref | None:
    """The one input in whose memory the operator's first argument lies in eager, where ATen can be told the place: an offset
    counts from where that memory begins, and without one the view begins where the input does."""
    inputs = list(_inputs_there(ctx))
    if len(inputs) != 1 or not isinstance(found := ctx.refs.get(inputs[0]), Ref):
        return None
    mine: Any = ctx.node.args[0]
    start, other = (ctx.sizes.expr(one.meta["val"].storage_offset()) for one in (inputs[0], mine))
    return found if offset is not None or simplify(start - other) == 0 else None


def _place(ctx: Lowering, offset: Any) -> Any:
    """Where a view begins, counted from where the memory does."""
    return ctx.node.args[0].meta["val"].storage_offset() if offset is None else offset  # type: ignore[union-attr]


def is_read_only_input(ctx: Lowering, x: Ref) -> bool:
    """Whether x lies in an input, in eager too, and the graph writes to no other one in the same memory: ATen sees it as
    eager does, with what lies around it."""
    if x.buffer.kind is not BufferKind.INPUT or x.strided() is None:
        return False
    there = _inputs_there(ctx)
    written = (node.args[0] for node in ctx.node.graph.find_nodes(op="call_function", target=aten.copy_.default))
    return len(there) == 1 or (bool(there) and there.isdisjoint(written))  # type: ignore[arg-type]


def counts_in_an_input(ctx: Lowering, x: Ref, offset: Any) -> bool:
    """Whether an offset counts from where the memory of an input begins, which differs from call to call."""
    return offset is not None and x.buffer.kind is BufferKind.INPUT and bool(_inputs_there(ctx))


def _inputs_there(ctx: Lowering) -> set[torch.fx.Node]:
    """The inputs in whose memory the operator's first argument lies in eager: none for a copy, which here may be a view."""
    mine = storage_key(ctx.node.args[0].meta["val"])  # type: ignore[union-attr]
    inputs = ctx.node.graph.find_nodes(op="placeholder")
    return {
        node for node in inputs if isinstance(value := node.meta["val"], torch.Tensor) and storage_key(value) == mine
    }


def flat_memory(
    ctx: Lowering, x: Ref, sizes: Sequence[Expr], strides: Any, offset: Any, node: torch.fx.Node | None = None
) -> tuple[Ref, list[int], Callable[[Sequence[Index]], Index]] | None:
    """For an operator that sees the memory of its first argument x (or of `node`) as (sizes, strides, offset): x in the
    order of eager's memory as one row, the dimensions in that order, and where in the row an element lies. None where x is
    not dense in eager, or where the view goes beyond its elements."""
    value = (node or ctx.node.args[0]).meta["val"]  # type: ignore[union-attr]
    order = _memory_order(ctx, value)
    steps = ctx.sizes.exprs(strides)
    start = 0 if offset is None else simplify(ctx.sizes.expr(offset) - ctx.sizes.expr(value.storage_offset()))
    last = start
    for size, step in zip(sizes, steps, strict=True):
        last = last + (size - 1) * step
    total = product(x.sizes)
    whole = ctx.sizes.expr(value.numel() * value.itemsize) == ctx.sizes.expr(value.untyped_storage().nbytes())
    known = isinstance(last, int) and isinstance(start, int) and isinstance(total, int)
    if order is None or not (start >= 0 and last < total if known else whole):
        return None  # fakes do not look whether a view ends within its storage

    def place(at: Sequence[Index]) -> Index:
        position = Index(start)
        for index, step in zip(at, steps, strict=True):
            position = position + index * step
        return position

    return x.permute(order).reshape((total,)), order, place


def _memory_order(ctx: Lowering, value: torch.Tensor) -> list[int] | None:
    """The dimensions of eager's tensor from the greatest stride to the least, None where it has gaps or overlaps."""
    strides, sizes = ctx.sizes.exprs(value.stride()), ctx.sizes.exprs(value.shape)
    long = [dim for dim, size in enumerate(sizes) if size != 1]
    order = sorted(long, key=lambda dim: -ctx.sizes.hint(strides[dim]))
    step: Expr = 1
    for dim in reversed(order):
        if simplify(strides[dim] - step) != 0:
            return None
        step = step * sizes[dim]
    return order + [dim for dim in range(len(sizes)) if dim not in long]


@lower(aten.flip.default)
def flip(ctx: Lowering, x: Ref, dims: Sequence[int]) -> Ref:
    return x.flip([dim % len(x.sizes) for dim in dims]) if x.sizes else x


@lower(aten.roll.default)
def roll(ctx: Lowering, x: Ref, shifts: Any, dims: Any = ()) -> Ref:
    """Outer dimensions are read where they were; a last one that moves is two pieces, each of neighbours."""
    moves = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    where = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    flat = x if where else x.reshape((product(x.sizes),))
    rank = len(flat.sizes)
    moved = [dim % rank for dim in where] if where and rank else [0]
    if not rank or not all(isinstance(n, int) for n in (*moves, *(flat.sizes[dim] for dim in moved))):
        found: Ref = call_fallback(ctx, aten.roll.default, [x, shifts, dims], {})
        return found
    result = flat
    for dim, shift in zip(moved, moves, strict=True):
        size = result.sizes[dim]
        if size and shift % size:
            start = size - shift % size
            if dim == rank - 1:
                whole = ctx.buffer(result.sizes, result.dtype)
                _store_parts(
                    ctx, whole, [result.slice(dim, start, shift % size), result.slice(dim, 0, start)], dim, 0
                )
                result = Ref.of(whole)
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


@lower(aten.cat.default)
def cat(ctx: Lowering, parts: Sequence[Ref], dim: int = 0) -> Ref:
    """One buffer, one store of a region for each part."""
    sizes, dtype = ctx.shape(), ctx.meta().dtype
    dim = dim % len(sizes)
    chain = ctx.chains.get(ctx.node)
    if chain is not None:
        return _version(ctx, chain.cats, parts, dim)
    parts = [part for part in parts if len(part.sizes) == len(sizes) and part.sizes[dim] != 0]
    if len(parts) == 1 and parts[0].dtype == dtype:
        return parts[0]
    if ctx.gpu and _is_narrow(parts, dim):
        return _selected(ctx, parts)
    buffer = ctx.buffer(sizes, dtype, Lowering.dense(sizes, ctx.strides()))
    _store_parts(ctx, buffer, parts, dim, 0)
    return Ref.of(buffer)


#: On GPUs rows of up to so many elements, of so many equal parts at most, are put together in one loop.
NARROW, FEW_PARTS = 1024, 4


def _is_narrow(parts: Sequence[Ref], dim: int) -> bool:
    """Halves of rows, as in rotary embeddings: what the kernels that read them can choose from for themselves."""
    if not 2 <= len(parts) <= FEW_PARTS or dim != len(parts[0].sizes) - 1:
        return False
    widths = {part.sizes[dim] for part in parts}
    width = next(iter(widths))
    return len(widths) == 1 and isinstance(width, int) and len(parts) * width <= NARROW


def _selected(ctx: Lowering, parts: Sequence[Ref]) -> Ref:
    """One loop that chooses between the parts, each read inside its bounds everywhere; readers may compute it inside
    themselves, which a buffer of regions does not allow."""
    width, dtype = parts[0].sizes[-1], ctx.meta().dtype

    def body(at: Sequence[Index]) -> Any:
        place, inside = make("index", attr=at[-1]), (*at[:-1], mod(at[-1], width))
        result = cast(parts[-1].at(inside), dtype)
        for number in range(len(parts) - 2, -1, -1):
            before = make("lt", place, const(width * (number + 1), torch.int64))
            result = make("where", before, cast(parts[number].at(inside), dtype), result)
        return result

    return ctx.pointwise(body, label="cat")


def _store_parts(ctx: Lowering, buffer: Buffer, parts: Sequence[Ref], dim: int, start: Expr) -> None:
    """Stores each part into its region, the first one from `start` on."""
    for part in parts:
        index = list(variables(part.sizes))
        value = cast(part.at(index), buffer.dtype)
        index[dim] = index[dim] + start
        ctx.add_loop(part.sizes, [False] * len(index), [Store((buffer.name,), tuple(index), value)], "cat")
        start = simplify(start + part.sizes[dim])


def _version(ctx: Lowering, cats: Sequence[torch.fx.Node], parts: Sequence[Ref], dim: int) -> Ref:
    """One concatenation of a chain: only the parts that the shorter ones lack are stored."""
    place = cats.index(ctx.node)
    longest = cats[-1]
    if longest not in ctx.versions:
        fake = longest.meta["val"]
        sizes = ctx.sizes.exprs(fake.shape)
        strides = last_strides(sizes) if longest in ctx.last else None
        ctx.versions[longest] = ctx.buffer(sizes, fake.dtype, strides)
    whole = ctx.versions[longest]
    buffer = whole
    if ctx.node is not longest:
        buffer = ctx.buffer(ctx.shape(), whole.dtype, whole.layout.strides)
        buffer.storage = whole.name
        ctx.versions[ctx.node] = buffer
    done: int = 0
    start: Expr = 0
    if place > 0:
        before = cats[place - 1]
        done, start = len(before.args[0]), ctx.versions[before].layout.sizes[dim]  # type: ignore[arg-type]
        ctx.program.extends[buffer.name] = ctx.versions[before].name
    _store_parts(ctx, buffer, parts[done:], dim, start)
    return Ref.of(buffer)


@lower(aten.stack.default)
def stack(ctx: Lowering, parts: Sequence[Ref], dim: int = 0) -> Ref:
    dim = dim % (len(parts[0].sizes) + 1)
    return cat(ctx, [part.unsqueeze(dim) for part in parts], dim)


@lower(aten.constant_pad_nd.default)
def constant_pad_nd(ctx: Lowering, x: Ref, pads: Sequence[Any], value: Any = 0) -> Ref:
    """Reads inside the operand, the constant outside it."""
    rank, dtype = len(x.sizes), ctx.meta().dtype
    before: list[Expr] = [0] * rank
    padded = [False] * rank
    for k in range(len(pads) // 2):
        low, high = ctx.sizes.expr(pads[2 * k]), ctx.sizes.expr(pads[2 * k + 1])
        before[rank - 1 - k] = low
        padded[rank - 1 - k] = not (low == 0 and high == 0)

    def body(at: Sequence[Index]) -> Any:
        inside = None
        position = [index - before[k] for k, index in enumerate(at)]
        for k in range(rank):
            if not padded[k]:
                continue
            here = make("index", attr=position[k])
            size = make("index", attr=Index(x.sizes[k]))
            test = make("bit_and", make("ge", here, const(0, torch.int64)), make("lt", here, size))
            inside = test if inside is None else make("bit_and", inside, test)
        if inside is None:
            return x.at(position)
        return make(
            "masked_load", inside, const(value, dtype), attr=(x.buffer.name, x.place(position), x.dtype)
        )

    return ctx.pointwise(body, label="pad")
