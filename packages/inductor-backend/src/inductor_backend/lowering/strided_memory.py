"""as_strided and the like: operators that address their operand's memory by strides and an absolute
offset.

They become views of the operand's elements in eager's memory order, or loops over them. ATen's
kernel is called only with an offset relative to the operand's begin, because our buffers lie
somewhere in an arena, or where ATen sees an input's memory as eager does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import (
    Expr,
    Index,
    contiguous_strides,
    product,
    simplify,
    variables,
)
from inductor_backend.ir.nodes import BufferKind
from inductor_backend.ir.values import const
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.scatter import Target
from inductor_backend.torch_private import storage_key


@lower(aten.as_strided.default)
def as_strided(ctx: Lowering, x: Ref, sizes: Any, strides: Any, offset: Any = None) -> Ref:
    """Strides address the memory of eager's `x`, whatever ours is; where eager's is dense, they
    address its elements in memory order."""
    if 0 in ctx.shape():
        return ctx.pointwise(lambda at: const(0, x.dtype), ctx.shape(), x.dtype, ctx.strides())
    if offset is None and _place_is_known(ctx):
        offset = _place(ctx, None)
    memory = (
        None
        if _counts_in_an_input(ctx, x, offset)
        else _flat_memory(ctx, x, ctx.shape(), strides, offset)
    )
    if memory is None and (owner := _owner_of_memory(ctx)) is not None:
        memory = _flat_memory(
            ctx, ctx.refs[owner], ctx.shape(), strides, _place(ctx, offset), owner
        )
    if memory is None and x.buffer.kind is not BufferKind.INPUT:
        x = _input_there(ctx, offset) or x
    if memory is None and _is_read_only_input(ctx, x):
        return ctx.extern(
            aten.as_strided_copy.default,
            [ctx.strided(x), list(sizes), list(strides), offset],
            strides=contiguous_strides(ctx.shape()),
            fallback=True,
        )
    if memory is None:
        raise unsupported(
            "lower", "as_strided of a tensor that is not dense, or beyond its elements", ctx.node
        )
    flat, _, place = memory
    return flat.remap(ctx.shape(), [place(variables(ctx.shape()))])


@lower(aten.as_strided_copy.default)
def as_strided_copy(ctx: Lowering, x: Ref, sizes: Any, strides: Any, offset: Any = None) -> Ref:
    return ctx.pointwise(
        as_strided(ctx, x, sizes, strides, offset).at, ctx.shape(), x.dtype, ctx.strides()
    )


@lower(aten.as_strided_scatter.default)
def as_strided_scatter(
    ctx: Lowering, x: Ref, source: Ref, sizes: Any, strides: Any, offset: Any = None
) -> Ref:
    memory = (
        None
        if _counts_in_an_input(ctx, x, offset)
        else _flat_memory(ctx, x, source.sizes, strides, offset)
    )
    if memory is None:
        return _by_aten(ctx, x, source, sizes, strides, offset)
    flat, order, place = memory
    target = Target.filled(ctx, flat.at, flat.sizes, None, x.dtype)
    target.scatter("set", source.sizes, lambda at: [place(at)], source.at)
    ordered = Ref.of(target.buffer).reshape(tuple(x.sizes[dim] for dim in order))
    return ordered.permute([order.index(dim) for dim in range(len(order))])


def _by_aten(ctx: Lowering, x: Ref, source: Ref, sizes: Any, strides: Any, offset: Any) -> Ref:
    """Calls ATen: without an offset at the operand's begin, or anywhere in an input's memory."""
    if _is_read_only_input(ctx, x):
        inputs = [ctx.strided(x), ctx.strided(source), list(sizes), list(strides), offset]
        return ctx.extern(ctx.node.target, inputs, fallback=True)
    if _counts_in_an_input(ctx, x, offset):
        raise unsupported("lower", "as_strided_scatter into an input that is written to", ctx.node)
    value = ctx.node.args[0].meta["val"]  # type: ignore[union-attr]
    start = ctx.sizes.expr(value.storage_offset())
    if offset is not None and simplify(ctx.sizes.expr(offset) - start) != 0:
        raise unsupported("lower", "as_strided_scatter into a tensor that is not dense", ctx.node)
    operands = [ctx.strided(x, ctx.sizes.exprs(value.stride())), ctx.strided(source)]
    return ctx.extern(ctx.node.target, [*operands, list(sizes), list(strides)])


def _owner_of_memory(ctx: Lowering) -> torch.fx.Node | None:
    """Returns the node that allocated the memory of the operator's first argument in eager; None if
    an input did."""
    node: Any = ctx.node.args[0]
    while node.op == "call_function":
        all_input_nodes = node.all_input_nodes
        # an item of a tuple, such as split's
        if all_input_nodes and isinstance(all_input_nodes[0].meta.get("val"), (tuple, list)):
            all_input_nodes = all_input_nodes[0].all_input_nodes
        sources = [
            node for node in all_input_nodes if isinstance(node.meta.get("val"), torch.Tensor)
        ]
        mine = storage_key(node.meta["val"])
        source = next((node for node in sources if storage_key(node.meta["val"]) == mine), None)
        if source is None:
            return node if isinstance(ctx.refs.get(node), Ref) else None
        node = source
    return None


def _input_there(ctx: Lowering, offset: Any) -> Ref | None:
    """Returns the one input whose memory holds the operator's first argument in eager, where ATen
    can address it: an offset counts from the begin of the memory; without one the view begins where
    the input does."""
    inputs = list(_inputs_there(ctx))
    if len(inputs) != 1 or not isinstance(ref := ctx.refs.get(inputs[0]), Ref):
        return None
    mine: Any = ctx.node.args[0]
    start, other = (ctx.sizes.expr(node.meta["val"].storage_offset()) for node in (inputs[0], mine))
    return ref if offset is not None or simplify(start - other) == 0 else None


def _place(ctx: Lowering, offset: Any) -> Any:
    """Returns the view's offset from the begin of the memory."""
    return ctx.node.args[0].meta["val"].storage_offset() if offset is None else offset  # type: ignore[union-attr]


def _place_is_known(ctx: Lowering) -> bool:
    """Checks that an as_strided with an offset made the memory that the operator's first argument
    views, so that its begin is the same in every call."""
    node: Any = ctx.node.args[0]
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        if node.target is aten.as_strided.default and len(node.args) > 3:
            return node.args[3] is not None
        mine = _memory_of(node)
        node = next((source for source in node.all_input_nodes if _memory_of(source) == mine), None)
    return False


def _memory_of(node: torch.fx.Node) -> Any:
    """Returns the storage of a node's value, or of the first part of a tuple; None without one."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    return storage_key(value) if isinstance(value, torch.Tensor) else None


def _is_read_only_input(ctx: Lowering, x: Ref) -> bool:
    """Checks that x lies in an input, in eager too, and that the graph writes to no other input of
    that memory, so that ATen sees the surrounding memory as eager does."""
    if x.buffer.kind is not BufferKind.INPUT or x.strided() is None:
        return False
    there = _inputs_there(ctx)
    written = (
        node.args[0]
        for node in ctx.node.graph.find_nodes(op="call_function", target=aten.copy_.default)
    )
    return len(there) == 1 or (bool(there) and there.isdisjoint(written))


def _counts_in_an_input(ctx: Lowering, x: Ref, offset: Any) -> bool:
    """Checks for an offset into the memory of an input, whose begin differs between calls."""
    return offset is not None and x.buffer.kind is BufferKind.INPUT and bool(_inputs_there(ctx))


def _inputs_there(ctx: Lowering) -> set[torch.fx.Node]:
    """Returns the inputs that share memory with the operator's first argument in eager: none for a
    copy, which may be a view here."""
    mine = storage_key(ctx.node.args[0].meta["val"])  # type: ignore[union-attr]
    inputs = ctx.node.graph.find_nodes(op="placeholder")
    return {
        node
        for node in inputs
        if isinstance(value := node.meta["val"], torch.Tensor) and storage_key(value) == mine
    }


def _flat_memory(
    ctx: Lowering,
    x: Ref,
    sizes: Sequence[Expr],
    strides: Any,
    offset: Any,
    node: torch.fx.Node | None = None,
) -> tuple[Ref, list[int], Callable[[Sequence[Index]], Index]] | None:
    """Treats the memory of x (or of `node`) as the view (sizes, strides, offset). Returns x as one
    row in eager's memory order, its dimensions in that order, and a function from the view's index
    to the position in the row. None where x is not dense in eager or the view exceeds its elements.
    """
    value = (node or ctx.node.args[0]).meta["val"]  # type: ignore[union-attr]
    order = _memory_order(ctx, value)
    steps = ctx.sizes.exprs(strides)
    start = (
        0
        if offset is None
        else simplify(ctx.sizes.expr(offset) - ctx.sizes.expr(value.storage_offset()))
    )
    last = start
    for size, step in zip(sizes, steps, strict=True):
        last = last + (size - 1) * step
    total = product(x.sizes)
    full = ctx.sizes.expr(value.numel() * value.itemsize) == ctx.sizes.expr(
        value.untyped_storage().nbytes()
    )
    known = isinstance(last, int) and isinstance(start, int) and isinstance(total, int)
    if order is None or not (start >= 0 and last < total if known else full):
        return None  # fake tensors do not check that a view ends within its storage

    def place(at: Sequence[Index]) -> Index:
        position = Index(start)
        for index, step in zip(at, steps, strict=True):
            position = position + index * step
        return position

    return x.permute(order).reshape((total,)), order, place


def _memory_order(ctx: Lowering, value: torch.Tensor) -> list[int] | None:
    """Returns eager's dimensions from the greatest stride to the least; None where there are gaps
    or overlaps."""
    strides, sizes = ctx.sizes.exprs(value.stride()), ctx.sizes.exprs(value.shape)
    long = [dim for dim, size in enumerate(sizes) if size != 1]
    order = sorted(long, key=lambda dim: -ctx.sizes.hint(strides[dim]))
    step: Expr = 1
    for dim in reversed(order):
        if simplify(strides[dim] - step) != 0:
            return None
        step = step * sizes[dim]
    return order + [dim for dim in range(len(sizes)) if dim not in long]
