"""Lowers attention to extern nodes; on GPUs, attention of one query to loops.

A model that generates a text asks with one query a step, and reads its cache of keys and values
once: loops read the cache where it is (also through the views that repeat grouped heads), in as
many programs as there are keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.nodes import Strided
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_any
from inductor_backend.lowering.reduction import exponentials, zero_if_empty

_CPU = aten._scaled_dot_product_flash_attention_for_cpu.default
_DTYPES = frozenset({torch.bfloat16, torch.float16, torch.float32})


@lower(
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    _CPU,
)
def attention(ctx: Lowering, *args: Any, **kwargs: Any) -> Any:
    if ctx.gpu and (result := _of_one_query(ctx, args, kwargs)) is not None:
        return result
    if ctx.node.target is _CPU:
        return _on_a_cpu(ctx, *args, **kwargs)
    return call_any(ctx, ctx.node.target, args, kwargs)


def _of_one_query(
    ctx: Lowering, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Ref | None, ...] | None:
    """Lowers scores, softmax and the sum of values as loops in float32; a query that sees no key gets
    zeros. None where there are several queries, or dropout, or where the logsumexp is used."""
    names = [item.name for item in ctx.node.target._schema.arguments]  # type: ignore[union-attr]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    batch, heads, queries, depth = query.sizes
    if queries != 1 or not ctx.used_outputs() <= {0} or query.dtype not in _DTYPES:
        return None
    if arguments.get("dropout_p") or arguments.get("is_causal"):
        return None
    if key.sizes[:2] != (batch, heads) or not isinstance(depth, int):
        return None
    mask = arguments.get("attn_bias", arguments.get("attn_mask"))
    scale = arguments.get("scale")
    factor = const(1 / math.sqrt(depth) if scale is None else scale, torch.float32)
    rows = (batch, heads, key.sizes[2])

    def term(at: Sequence[Index]) -> Value:
        image, head, place, element = at
        asked = cast(query.at((image, head, Index(), element)), torch.float32)
        return make("mul", asked, cast(key.at((image, head, place, element)), torch.float32))

    (dots,) = ctx.reduction("sum", term, (*rows, depth), (3,), torch.float32, label="attention")

    def score(at: Sequence[Index]) -> Value:
        scaled = make("mul", dots.at((*at, Index())), factor)
        if mask is None:
            return scaled
        place = (*at[:2], Index(), at[2])
        return make("add", scaled, cast(mask.at(broadcast(place, mask.sizes)), torch.float32))

    greatest, weights, totals = exponentials(ctx, score, rows, (2,), torch.float32, "attention")

    def weighted(at: Sequence[Index]) -> Value:
        image, head, element, place = at
        weight = weights.at((image, head, place))
        return make("mul", weight, cast(value.at((image, head, place, element)), torch.float32))

    domain = (batch, heads, value.sizes[3], key.sizes[2])
    (sums,) = ctx.reduction("sum", weighted, domain, (3,), torch.float32, label="attention")

    def mean(at: Sequence[Index]) -> Value:
        image, head, _, element = at
        row = (image, head, Index())
        total = sums.at((image, head, element, Index()))
        return zero_if_empty(greatest, row, make("div", total, totals.at(row)))

    result = ctx.pointwise(mean, ctx.shape(0), ctx.meta(0).dtype, ctx.strides(0), label="attention")
    return (result, *[None] * (len(ctx.node.meta["val"]) - 1))


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
