"""Lowers `cat` and `stack` to one buffer, into whose regions the operands are stored.

Narrow operands on GPUs that are cheap to compute are selected in one loop instead. In a chain of concatenations
(`cat_chains`) each operand is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import (
    Expr,
    Index,
    contiguous_strides,
    mod,
    simplify,
    variables,
)
from inductor_backend.ir.nodes import Buffer, LoopNode, Node, Store
from inductor_backend.ir.value_cost import CHEAP, CHEAP_LOADS, cost, load_count
from inductor_backend.ir.values import cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, last_strides, lower
from inductor_backend.lowering.matmul import aligned_strides


@lower(aten.cat.default)
def cat(ctx: Lowering, parts: Sequence[Ref], dim: int = 0) -> Ref:
    """Stores each part into its region of one buffer."""
    sizes, dtype = ctx.shape(), ctx.meta().dtype
    dim = dim % len(sizes)
    chain = ctx.chains.get(ctx.node)
    if chain is not None:
        return _version(ctx, chain.cats, parts, dim)
    parts = [part for part in parts if len(part.sizes) == len(sizes) and part.sizes[dim] != 0]
    if len(parts) == 1 and parts[0].dtype == dtype:
        return parts[0]
    if not parts:  # no loop would store into the buffer, so nothing would allocate it
        return ctx.pointwise(lambda at: const(0, dtype), label="cat")
    if ctx.gpu and _is_narrow(parts, dim):
        return _side_by_side(ctx, parts) if _are_costly(ctx) else _selected(ctx, parts)
    if ctx.gpu and len(parts) > FEW_PARTS and all(_is_single(part) for part in parts):
        parts = _bundled(ctx, parts, dim)
    strides = _strides_of_reader(ctx) or _strides_of_matmuls(ctx)
    strides = strides or Lowering.dense(sizes, ctx.strides())
    buffer = ctx.buffer(sizes, dtype, strides)
    store_parts(ctx, buffer, parts, dim, 0)
    return Ref.of(buffer)


def _strides_of_reader(ctx: Lowering) -> tuple[Expr, ...] | None:
    """Returns the strides with which the node's only reader, a permuted copy, is its memory: the
    gradients of q, k and v, joined as the gradient of the product that they are parts of."""
    node, order = ctx.node, list(range(len(ctx.shape())))
    while len(node.users) == 1 and next(iter(node.users)).target is aten.permute.default:
        (node,) = node.users
        order = [order[place] for place in node.args[1]]  # type: ignore[union-attr,index]
    (reader,) = node.users if len(node.users) == 1 else (node,)
    if reader.target is not aten.clone.default or order == sorted(order):
        return None
    sizes = ctx.shape()
    permuted = contiguous_strides([sizes[place] for place in order])
    strides = dict(zip(order, permuted, strict=True))
    return tuple(strides[place] for place in range(len(sizes)))


def _strides_of_matmuls(ctx: Lowering) -> tuple[Expr, ...] | None:
    """Returns strides with which rows begin at multiples of 16 bytes, where matmuls alone read the node
    and would copy it for that."""
    if not ctx.gpu:
        return None
    sizes, waiting = ctx.shape(), [ctx.node]
    while waiting:
        for reader in waiting.pop().users:
            if reader.target is aten.view.default and reader.meta["val"].shape[-1] == sizes[-1]:
                waiting.append(reader)
            elif reader.target not in (aten.mm.default, aten.addmm.default):
                return None
    return aligned_strides(sizes, ctx.meta().dtype)


#: On GPUs rows of up to NARROW elements and FEW_PARTS equal parts are concatenated in one loop.
NARROW, FEW_PARTS = 1024, 4
#: Parts of one element that one loop selects between.
BUNDLE = 32


def _is_narrow(parts: Sequence[Ref], dim: int) -> bool:
    """Checks for few narrow parts of equal width, such as halves of rows in rotary embeddings."""
    if not 2 <= len(parts) <= FEW_PARTS or dim != len(parts[0].sizes) - 1:
        return False
    widths = {part.sizes[dim] for part in parts}
    width = next(iter(widths))
    return len(widths) == 1 and isinstance(width, int) and len(parts) * width <= NARROW


def _are_costly(ctx: Lowering) -> bool:
    """Checks whether at least half of the node's operands are gathers, or arithmetic beyond a few
    instructions, for this concatenation alone. A selection would compute each operand for every
    element of the result, so that they would be stored first; in regions they are computed in
    place."""
    operands: Sequence[torch.fx.Node] = ctx.node.args[0]  # type: ignore[assignment]
    writers = ctx.program.writers()
    return 2 * sum(_is_costly(ctx, writers, operand) for operand in operands) >= len(operands)


def _is_costly(ctx: Lowering, writers: dict[str, list[Node]], operand: torch.fx.Node) -> bool:
    """Checks whether the loops that compute an operand for its only reader, and their operands in
    the same way, load at indices or do more than computing again is worth."""
    waiting, instructions, loads = [(operand, ctx.node)], 0, 1
    while waiting:
        node, reader = waiting.pop()
        ref = ctx.refs.get(node)
        if not isinstance(ref, Ref) or set(node.users) != {reader}:
            continue
        loops = [loop for loop in writers.get(ref.buffer.name, ()) if isinstance(loop, LoopNode)]
        if len(loops) != 1 or loops[0].is_reduction or len(loops[0].stores) != 1:
            continue
        if loops[0].origin.fx == node.name:  # else the node is a view
            value = loops[0].stores[0].value
            indices = (index for load in loops[0].loads() for index in load.indices())
            instructions += cost(value)
            loads += load_count(value) - 1  # this loop's result is not loaded
            gathers = any(True for index in indices for _ in index.indirect_values())
            if gathers or instructions > CHEAP or loads > CHEAP_LOADS:
                return True
        waiting += [(inner, node) for inner in node.all_input_nodes]
    return False


def _is_single(part: Ref) -> bool:
    return all(size == 1 for size in part.sizes)


def _bundled(ctx: Lowering, parts: Sequence[Ref], dim: int) -> list[Ref]:
    """Joins parts of one element (norms of parameters) to a few of BUNDLE elements, each selected in
    one loop. Stored one by one, each would be a kernel with a text of its own, because its place in
    the buffer is part of the text."""
    dtype, created = ctx.meta().dtype, []
    for first in range(0, len(parts), BUNDLE):
        some = parts[first : first + BUNDLE]

        def body(at: Sequence[Index], some: Sequence[Ref] = some) -> Any:
            place, inside = make("index", attr=at[dim]), [Index(0)] * len(at)
            result = cast(some[-1].at(inside), dtype)
            for number in range(len(some) - 2, -1, -1):
                before = make("lt", place, const(number + 1, torch.int64))
                result = make("where", before, cast(some[number].at(inside), dtype), result)
            return result

        sizes = [len(some) if number == dim else 1 for number in range(len(parts[0].sizes))]
        created.append(ctx.pointwise(body, sizes=sizes, label="cat"))
    return created


def _selected(ctx: Lowering, parts: Sequence[Ref]) -> Ref:
    """Selects between the parts in one loop, each read within its bounds everywhere. Unlike a
    buffer of regions, it can be inlined into its readers."""
    width, dtype = parts[0].sizes[-1], ctx.meta().dtype

    def body(at: Sequence[Index]) -> Any:
        place, inside = make("index", attr=at[-1]), (*at[:-1], mod(at[-1], width))
        result = cast(parts[-1].at(inside), dtype)
        for number in range(len(parts) - 2, -1, -1):
            before = make("lt", place, const(width * (number + 1), torch.int64))
            result = make("where", before, cast(parts[number].at(inside), dtype), result)
        return result

    return ctx.pointwise(body, label="cat")


def _side_by_side(ctx: Lowering, parts: Sequence[Ref]) -> Ref:
    """Stores parts of equal width into their regions, all of them in one loop."""
    sizes, dtype = ctx.shape(), ctx.meta().dtype
    buffer = ctx.buffer(sizes, dtype, Lowering.dense(sizes, ctx.strides()))
    width, stores = parts[0].sizes[-1], []
    for number, part in enumerate(parts):
        *rows, last = variables(part.sizes)
        place = (*rows, last + width * number)
        stores.append(Store((buffer.name,), place, cast(part.at([*rows, last]), dtype)))
    ctx.add_loop(parts[0].sizes, [False] * len(sizes), stores, "cat")
    return Ref.of(buffer)


def store_parts(ctx: Lowering, buffer: Buffer, parts: Sequence[Ref], dim: int, start: Expr) -> None:
    """Stores each part into its region, the first one from `start` on."""
    for part in parts:
        index = list(variables(part.sizes))
        value = cast(part.at(index), buffer.dtype)
        index[dim] = index[dim] + start
        ctx.add_loop(
            part.sizes, [False] * len(index), [Store((buffer.name,), tuple(index), value)], "cat"
        )
        start = simplify(start + part.sizes[dim])


def _version(ctx: Lowering, cats: Sequence[torch.fx.Node], parts: Sequence[Ref], dim: int) -> Ref:
    """Lowers one concatenation of a chain: stores only the parts that the shorter ones lack."""
    place = cats.index(ctx.node)
    longest = cats[-1]
    if longest not in ctx.versions:
        fake = longest.meta["val"]
        sizes = ctx.sizes.exprs(fake.shape)
        strides = last_strides(sizes) if longest in ctx.last else None
        ctx.versions[longest] = ctx.buffer(sizes, fake.dtype, strides)
    version = ctx.versions[longest]
    buffer = version
    if ctx.node is not longest:
        buffer = ctx.buffer(ctx.shape(), version.dtype, version.layout.strides)
        buffer.storage = version.name
        ctx.versions[ctx.node] = buffer
    done: int = 0
    start: Expr = 0
    if place > 0:
        before = cats[place - 1]
        done, start = len(before.args[0]), ctx.versions[before].layout.sizes[dim]  # type: ignore[arg-type]
        ctx.program.extends[buffer.name] = ctx.versions[before].name
    store_parts(ctx, buffer, parts[done:], dim, start)
    return Ref.of(buffer)


@lower(aten.stack.default)
def stack(ctx: Lowering, parts: Sequence[Ref], dim: int = 0) -> Ref:
    dim = dim % (len(parts[0].sizes) + 1)
    return cat(ctx, [part.unsqueeze(dim) for part in parts], dim)
