"""Lowers vector norms, weight norm and its gradient, cdist, aminmax and multi_margin_loss to reductions and a pointwise node.

The order of a norm chooses the reduction as in eager (0 counts, infinities are extremes).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_backend.ir.index_expr import At, Index
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower, normalize_dims
from inductor_backend.lowering.fallback import call_aten
from inductor_backend.lowering.gathers import indirect
from inductor_backend.lowering.reduction import as_number, reduced_input, vecdot


def norm_term(value: Value, order: float) -> tuple[str, Value]:
    """Returns (reduction, its term for an element)."""
    size = make("abs", value)
    if order == 0:
        return "sum", cast(make("ne", value, const(0, value.dtype)), value.dtype)
    if math.isinf(order):
        return ("max" if order > 0 else "min"), size
    if order == 1:
        return "sum", size
    if order == 2:
        return "sum", make("mul", value, value)
    return "sum", make("pow", size, const(order, value.dtype))


def norm_end(total: Value, order: float) -> Value:
    if order in (0, 1) or math.isinf(order):
        return total
    return make("sqrt", total) if order == 2 else make("pow", total, const(1 / order, total.dtype))


@lower(aten.linalg_vector_norm.default)
def vector_norm(
    ctx: Lowering,
    x: Ref,
    order: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Ref:
    result = compute_dtype(ctx.meta().dtype)
    filled = all(ctx.sizes.is_positive(size) for size in x.sizes)
    if (
        not isinstance(order, (int, float))
        or not result.is_floating_point
        or (math.isinf(order) and not filled)
    ):
        return call_aten(ctx, x, order, dim, keepdim, **({"dtype": dtype} if dtype else {}))
    dims = normalize_dims(dim, len(x.sizes))
    source = reduced_input(x, result)
    if order != 0 and (x.sizes or not dim) and all(x.sizes[dim] == 1 for dim in dims):
        # Its square may overflow; along a dimension of a number without any eager takes it all the same.
        only = x.reshape(ctx.shape())
        return ctx.pointwise(lambda at: make("abs", cast(only.at(at), result)), label="norm")
    kind = norm_term(const(0, result), order)[0]
    (total,) = ctx.reduction(
        kind, lambda at: norm_term(source(at), order)[1], x.sizes, dims, result, "norm"
    )
    shaped = total.reshape(ctx.shape())
    return ctx.pointwise(lambda at: norm_end(shaped.at(at), order), label="norm")


@lower(aten.aminmax.default)
def aminmax(ctx: Lowering, x: Ref, *, dim: Any = None, keepdim: bool = False) -> tuple[Ref, Ref]:
    dims, dtype = normalize_dims(dim, len(x.sizes)), compute_dtype(x.dtype)
    least, greatest = (
        ctx.reduction(kind, reduced_input(x, dtype), x.sizes, dims, x.dtype, "aminmax")[0]
        for kind in ("min", "max")
    )
    return least.reshape(ctx.shape(0)), greatest.reshape(ctx.shape(1))


#: With more rows than this on a side eager computes the euclidean distance by a matmul.
PRODUCT_ROWS = 25


@lower(aten._cdist_forward.default)
def cdist(ctx: Lowering, a: Ref, b: Ref, order: float, mode: Any) -> Ref:
    rows, others = a.sizes[-2], b.sizes[-2]
    many = not all(isinstance(n, int) and n <= PRODUCT_ROWS for n in (rows, others))
    by_product = order == 2 and (mode == 1 or (mode in (None, 0) and many))
    filled = all(ctx.sizes.is_positive(size) for size in (*a.sizes, *b.sizes))
    if by_product or not filled or a.dtype != b.dtype:
        return call_aten(ctx, a, b, order, mode)
    dtype, shape = compute_dtype(a.dtype), ctx.shape()
    lead = len(shape) - 2
    left, right = a.expand((*shape[:lead], *a.sizes[-2:])), b.expand((*shape[:lead], *b.sizes[-2:]))
    domain = (*shape, a.sizes[-1])

    def distance(at: At) -> Value:
        first = cast(left.at([*at[:lead], at[lead], at[lead + 2]]), dtype)
        second = cast(right.at([*at[:lead], at[lead + 1], at[lead + 2]]), dtype)
        return make("sub", first, second)

    kind = norm_term(const(0, dtype), order)[0]
    (total,) = ctx.reduction(
        kind, lambda at: norm_term(distance(at), order)[1], domain, [lead + 2], dtype, "cdist"
    )
    shaped = total.reshape(shape)
    return ctx.pointwise(lambda at: norm_end(shaped.at(at), order), label="cdist")


@lower(aten.multi_margin_loss.default)
def multi_margin_loss(
    ctx: Lowering,
    x: Ref,
    target: Ref,
    p: Any = 1,
    margin: Any = 1,
    weight: Ref | None = None,
    reduction: int = 1,
) -> Ref:
    filled = all(ctx.sizes.is_positive(size) for size in x.sizes)
    if not filled or len(x.sizes) != 2 or len(target.sizes) != 1 or p not in (1, 2):
        return call_aten(ctx, x, target, p, margin, weight, reduction)
    rows, classes = x.sizes
    dtype = compute_dtype(x.dtype)

    def term(at: At) -> Value:
        wanted = cast(target.at([at[0]]), torch.int64)
        place = indirect(wanted, classes, wrap=False)
        gap = make("sub", const(margin, dtype), cast(x.at([at[0], place]), dtype))
        gap = make("maximum", make("add", gap, cast(x.at(at), dtype)), const(0, dtype))
        value = gap if p == 1 else make("mul", gap, gap)
        if weight is not None:
            value = make("mul", value, cast(weight.at([place]), dtype))
        own = make("eq", make("index", attr=at[1]), wanted)
        return make("where", own, const(0, dtype), value)

    count = as_number(classes, dtype)
    if reduction == 0:
        (total,) = ctx.reduction("sum", term, x.sizes, [1], dtype, "multi_margin_loss")
        return ctx.pointwise(lambda at: make("div", total.at([at[0], Index()]), count))
    (total,) = ctx.reduction("sum", term, x.sizes, [0, 1], dtype, "multi_margin_loss")
    divisor = make("mul", count, as_number(rows, dtype)) if reduction == 1 else count
    return ctx.pointwise(lambda at: make("div", total.at([Index(), Index()]), divisor))


def _other_dims(x: Ref, dim: int) -> list[int]:
    rank = len(x.sizes)
    return [d for d in range(rank) if d != dim % rank]


@lower(aten._weight_norm_interface.default)
def weight_norm(ctx: Lowering, v: Ref, g: Ref, dim: int = 0) -> tuple[Ref, Ref]:
    """Lowers ``v * g / norm(v)``, of the slices along a dimension."""
    dtype = compute_dtype(v.dtype)
    squares = vecdot(ctx, v, v, _other_dims(v, dim), "weight_norm")
    norms = ctx.pointwise(
        lambda at: make("sqrt", squares.at(at)), squares.sizes, dtype, label="weight_norm"
    )

    def body(at: At) -> Value:
        slice_ = broadcast(at, g.sizes)
        factor = make("div", cast(g.at(slice_), dtype), norms.at(slice_))
        return make("mul", cast(v.at(at), dtype), factor)

    first = ctx.meta(0)
    result = ctx.pointwise(body, v.sizes, first.dtype, ctx.strides(0), label="weight_norm")
    return result, ctx.as_output(norms, 1, "saved")


@lower(aten._weight_norm_interface_backward.default)
def weight_norm_backward(
    ctx: Lowering, gradient: Ref, v: Ref, g: Ref, norms: Ref, dim: int
) -> tuple[Ref, Ref]:
    dtype = compute_dtype(v.dtype)
    label, first, second = "weight_norm_backward", ctx.meta(0), ctx.meta(1)
    dots = vecdot(ctx, gradient, v, _other_dims(v, dim), label)

    def of_size(at: At) -> Value:
        return make("div", dots.at(at), cast(norms.at(at), dtype))

    def of_direction(at: At) -> Value:
        slice_ = broadcast(at, g.sizes)
        norm = cast(norms.at(slice_), dtype)
        along = make("div", dots.at(slice_), make("mul", norm, norm))
        across = make(
            "sub", cast(gradient.at(at), dtype), make("mul", cast(v.at(at), dtype), along)
        )
        return make("mul", across, make("div", cast(g.at(slice_), dtype), norm))

    return (
        ctx.pointwise(of_direction, v.sizes, first.dtype, ctx.strides(0), label=label),
        ctx.pointwise(of_size, g.sizes, second.dtype, ctx.strides(1), label=label),
    )
