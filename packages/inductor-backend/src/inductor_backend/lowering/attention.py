"""Lowers attention to extern nodes; attention of few queries to kernels of our own.

A model that generates a text asks with one query a step (or with few: assisted generation, short
prompts), and reads its cache of keys and values once. The kernels read the cache where it is: views
that repeat heads for grouped queries are undone, on CPUs also copies of 16-bit floats in float32, and
a boolean mask is read as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from inductor_backend.ir.graph_meta import before_widening
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import Strided
from inductor_backend.ir.views import Ref
from inductor_backend.kernels import packed_ops
from inductor_backend.kernels.attention import decodes, result_strides
from inductor_backend.kernels.decoding_attention import DecodingAttention
from inductor_backend.kernels.flex_attention import DTYPES
from inductor_backend.limits import MAX_DECODED_QUERIES, MAX_HEAD_WIDTH
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_any

_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default


@lower(
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    _CPU,
)
def attention(ctx: Lowering, *args: Any, **kwargs: Any) -> Any:
    if ctx.gpu and (result := _by_split_keys(ctx, args, kwargs)) is not None:
        return result
    if ctx.node.target is _CPU:
        return _on_a_cpu(ctx, *args, **kwargs)
    return call_any(ctx, ctx.node.target, args, kwargs)


def _by_split_keys(
    ctx: Lowering, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Ref | None, ...] | None:
    """Lowers attention of few queries to the kernel of `codegen.triton.decoding_attention`. None where
    there are many queries, or several that share no keys; with dropout, or where the logsumexp is used."""
    names = [item.name for item in ctx.node.target._schema.arguments]  # type: ignore[union-attr]
    arguments: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
    nodes: dict[str, Any] = dict(zip(names, ctx.node.args, strict=False)) | ctx.node.kwargs
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if (
        arguments.get("dropout_p")
        or not ctx.used_outputs() <= {0}
        or not _fits(ctx, query, key, value)
    ):
        return None
    _, heads, queries, depth = query.sizes
    scale = arguments.get("scale")
    scale = 1 / math.sqrt(depth) if scale is None else scale
    if query.dtype != key.dtype or not isinstance(scale, (int, float)):
        return None
    key, value = _shared(key, value, heads)
    if queries > 1 and key.sizes[1] == heads:
        return None
    name = "attn_bias" if "attn_bias" in arguments else "attn_mask"
    mask, hidden = _mask(
        ctx, arguments.get(name), nodes.get(name), (*query.sizes[:3], key.sizes[2])
    )
    target = DecodingAttention(scale, hidden, bool(arguments.get("is_causal")))
    operands = [*(ctx.strided(operand) for operand in (query, key, value)), mask]
    return ctx.externs(target, operands, used={0}, label="attention")


@lower(packed_ops.attention)
def native_attention(
    ctx: Lowering,
    query: Ref,
    key: Ref,
    value: Ref,
    mask: Ref | None,
    scale: float | None,
    causal: bool,
    empty: bool,
) -> Ref:
    """Calls one of the kernels of `kernels.attention`."""
    nodes: Any = ctx.node.args
    extern: Callable[..., Ref] = partial(
        ctx.extern, strides=result_strides(ctx.shape()), label="attention"
    )
    of_key, of_value = (ctx.refs[before_widening(node)] for node in nodes[1:3])
    if _fits(ctx, query, of_key, of_value):
        _, heads, queries, depth = query.sizes
        shared = _shared(of_key, of_value, heads)
        repeated = heads // shared[0].sizes[1]
        if decodes(queries, repeated, ctx.sizes.hint(key.sizes[2]), depth, value.sizes[3]):
            inputs, hidden = _mask(ctx, mask, nodes[3], (*query.sizes[:3], key.sizes[2]))
            tensors = [last_dense(ctx, x) for x in (query, *shared)]
            scale = 1 / math.sqrt(depth) if scale is None else scale
            target = packed_ops.decoding_attention
            return extern(target, [*tensors, inputs, scale, hidden, causal, empty])
    tensors = [last_dense(ctx, tensor) for tensor in (query, key, value)]
    inputs = None if mask is None else ctx.strided(mask)
    return extern(ctx.node.target, [*tensors, inputs, scale, causal, empty])


def _shared(key: Ref, value: Ref, heads: int) -> list[Ref]:
    """Returns keys and values without the repetitions of heads that queries share."""
    repeated = [_with_heads(operand, heads) for operand in (key, value)]
    count = next(
        count
        for count in range(heads, 0, -1)
        if heads % count == 0 and all(_repeats(operand, count) for operand in repeated)
    )
    return [_grouped(operand, count).select(2, 0) for operand in repeated]


def _mask(
    ctx: Lowering, mask: Ref | None, node: Any, sizes: Sequence[Expr]
) -> tuple[Strided | None, float]:
    """Returns the mask of all queries, as bools where it was made of them, and what these add to the
    scores of hidden keys."""
    if mask is None:
        return None, -math.inf
    mask, hidden = _condition(ctx, node) or (mask, -math.inf)
    return ctx.strided(mask.expand(tuple(sizes))), hidden


def _fits(ctx: Lowering, query: Ref, key: Ref, value: Ref) -> bool:
    """Checks for few queries of heads of static sizes that the kernels hold. Of a dynamic cache keys
    and values have symbols of their own for one length."""
    batch, heads, queries, depth = query.sizes
    static = (heads, queries, depth, key.sizes[1], value.sizes[1], value.sizes[3])
    return (
        query.dtype in DTYPES
        and key.dtype == value.dtype
        and key.dtype in DTYPES
        and all(isinstance(size, int) and size for size in static)
        and queries <= MAX_DECODED_QUERIES
        and max(depth, value.sizes[3]) <= MAX_HEAD_WIDTH
        and key.sizes[0] == value.sizes[0] == batch != 0
        and ctx.sizes.hint(key.sizes[2]) == ctx.sizes.hint(value.sizes[2]) != 0
        and heads % key.sizes[1] == heads % value.sizes[1] == 0
    )


def _with_heads(x: Ref, heads: int) -> Ref:
    """Returns the view that repeats heads of keys or values for those of the query."""
    batch, fewer, length, width = x.sizes
    repeated = x.unsqueeze(2).expand((batch, fewer, heads // fewer, length, width))
    return repeated.reshape((batch, heads, length, width))


def _grouped(x: Ref, count: int) -> Ref:
    """Returns the view of (batch, group, head of the group, position, element)."""
    batch, heads, *rest = x.sizes
    return x.reshape((batch, heads // count, count, *rest))


def _repeats(x: Ref, count: int) -> bool:
    """Checks that each `count` heads of keys or values are the same memory."""
    return all(2 not in index.variables() for index in _grouped(x, count).index)


def _condition(ctx: Lowering, mask: Any) -> tuple[Ref, float] | None:
    """Returns the boolean mask that an additive one was made of, and what that adds where the former
    is False; None where it was made in another way."""
    while (inner := _before_views(mask)) is not None:
        mask = inner
    if mask.target is not aten.where.self:
        return None
    condition, *numbers = mask.args
    shown, hidden = (_number(number) for number in numbers)
    result = ctx.refs[condition]
    if shown != 0 or hidden is None or result.dtype is not torch.bool:
        return None
    return result, hidden


def _before_views(mask: Any) -> Any:
    """Returns the mask before it was expanded, widened to float32, or padded (for ATen's wide loads)
    and cut again; None for any other."""
    if mask.target is aten.expand.default:
        return mask.args[0]
    if (narrow := before_widening(mask)) is not mask:
        return narrow
    padded = mask.args[0] if mask.target is aten.slice.Tensor else None
    if padded is None or padded.target is not aten.constant_pad_nd.default:
        return None
    inner, pads = padded.args[:2]
    start, step = mask.args[2:3], mask.args[4:]
    at_ends = start in ((), (0,), (None,)) and step in ((), (1,)) and not any(pads[::2])
    same = str(mask.meta["val"].shape) == str(inner.meta["val"].shape)
    return inner if at_ends and same else None


def _number(node: Any) -> float | None:
    """Returns the number that a tensor of one element holds, rounded to its dtype, where the graph says
    it."""
    if not isinstance(node, torch.fx.Node) or node.target is not aten.scalar_tensor.default:
        return None
    (number,) = node.args
    if not isinstance(number, (int, float)):
        return None
    return float(torch.tensor(float(number), dtype=node.meta["val"].dtype).item())


def _on_a_cpu(ctx: Lowering, query: Ref, key: Ref, value: Ref, *rest: Any, **kwargs: Any) -> Any:
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
