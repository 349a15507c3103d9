"""Lowers the gradients of batch, layer and group norm: two sums per normalized row, from one pass
over it, and pointwise nodes.

Sums are in float64, on GPUs in float32 (float64 for float64). Masked-out gradients are not
computed.

With x^ = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - x^ * mean(g * x^)) over
the normalized row; the weight's gradient is the sum of dy * x^, the bias's the sum of dy, over
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Index, product, simplify, variables
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.normalization import At, inverse_std
from inductor_backend.lowering.reduction import as_number, count
from inductor_backend.lowering.registry import Lowering, aten, lower


def _mul(*factors: Value | None) -> Value:
    """Multiplies the factors that are not None, from the left."""
    first, *rest = [factor for factor in factors if factor is not None]
    for factor in rest:
        first = make("mul", first, factor)
    return first


def _read(x: Ref | None, at: At, dtype: torch.dtype) -> Value | None:
    return None if x is None else cast(x.at(at), dtype)


def _sum(
    ctx: Lowering, terms: Callable[[At], Value], sizes: Sequence[Any], dims: list[int], label: str
) -> Ref:
    wide = ctx.sum_dtype(terms(variables(sizes)).dtype)
    (total,) = ctx.reduction("sum", lambda at: cast(terms(at), wide), sizes, dims, wide, label)
    return total


def _result(ctx: Lowering, position: int, value: Ref) -> Ref:
    """Returns a sum in the shape and dtype of an output."""
    shaped = value.reshape(ctx.shape(position))
    dtype = ctx.meta(position).dtype
    if shaped.dtype == dtype:
        return shaped
    return ctx.pointwise(
        lambda at: cast(shaped.at(at), dtype), ctx.shape(position), dtype, label="to"
    )


@lower(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    weight: Ref | None,
    running_mean: Ref | None,
    running_var: Ref | None,
    saved_mean: Ref | None,
    saved_inverse: Ref | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Ref | None, ...]:
    dtype = compute_dtype(x.dtype)
    dims = [k for k in range(len(x.sizes)) if k != 1]
    kept = [size if k == 1 else 1 for k, size in enumerate(x.sizes)]

    def mean(c: Index) -> Value:
        source = saved_mean if training else running_mean
        assert source is not None
        return cast(source.at([c]), dtype)

    def inverse(c: Index) -> Value:
        if training:
            assert saved_inverse is not None
            return cast(saved_inverse.at([c]), dtype)
        assert running_var is not None
        return inverse_std(cast(running_var.at([c]), dtype), eps)

    def centered(at: At) -> Value:
        return make("sub", cast(x.at(at), dtype), mean(at[1]))

    def slope(at: At) -> Value:
        return cast(dy.at(at), dtype)

    label = "batch_norm_backward"
    needs_sums = training and mask[0]
    total = dot = None
    if needs_sums or mask[2]:
        total = _sum(ctx, slope, x.sizes, dims, label)
    if needs_sums or mask[1]:
        dot = _sum(ctx, lambda at: _mul(slope(at), centered(at)), x.sizes, dims, label)
    size = as_number(count(x.sizes, dims), dtype)

    def dx(at: At) -> Value:
        c = at[1]
        scale = _mul(inverse(c), _read(weight, [c], dtype))
        if not training:
            return _mul(slope(at), scale)
        assert total is not None and dot is not None
        row = broadcast(at, kept)
        average = make("div", cast(total.at(row), dtype), size)
        pull = _mul(make("div", cast(dot.at(row), dtype), size), inverse(c), inverse(c))
        return _mul(make("sub", make("sub", slope(at), average), _mul(centered(at), pull)), scale)

    grad_x = (
        ctx.pointwise(dx, x.sizes, ctx.meta(0).dtype, ctx.strides(0), label) if mask[0] else None
    )
    grad_weight = grad_bias = None
    if mask[1]:
        assert dot is not None
        products = dot.reshape((x.sizes[1],))
        grad_weight = ctx.pointwise(
            lambda at: _mul(cast(products.at(at), dtype), inverse(at[0])),
            ctx.shape(1),
            ctx.meta(1).dtype,
            label=label,
        )
    if mask[2]:
        assert total is not None
        grad_bias = _result(ctx, 2, total)
    return grad_x, grad_weight, grad_bias


def _rows(
    ctx: Lowering,
    sizes: Sequence[Any],
    dims: list[int],
    slope: Callable[[At], Value],
    normal: Callable[[At], Value],
    inverse: Callable[[At], Value],
    dtype: torch.dtype,
    label: str,
) -> Callable[[At], Value]:
    """Returns dx of rows that were normalized over `dims`. slope: dy * weight; normal: x^."""
    total = _sum(ctx, slope, sizes, dims, label)
    dot = _sum(ctx, lambda at: _mul(slope(at), normal(at)), sizes, dims, label)
    size = as_number(count(sizes, dims), dtype)

    def body(at: At) -> Value:
        row = broadcast(at, total.sizes)
        average, pull = (make("div", cast(part.at(row), dtype), size) for part in (total, dot))
        inner = make("sub", make("sub", slope(at), average), _mul(normal(at), pull))
        return _mul(inner, inverse(at))

    return body


@lower(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    normalized: Sequence[Any],
    saved_mean: Ref,
    saved_inverse: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mask: Sequence[bool],
) -> tuple[Ref | None, ...]:
    dtype = compute_dtype(x.dtype)
    lead = len(x.sizes) - len(normalized)
    outer, inner = list(range(lead)), list(range(lead, len(x.sizes)))
    label = "layer_norm_backward"

    def inverse(at: At) -> Value:
        return cast(saved_inverse.at(broadcast(at, saved_inverse.sizes)), dtype)

    def normal(at: At) -> Value:
        mean = cast(saved_mean.at(broadcast(at, saved_mean.sizes)), dtype)
        return _mul(make("sub", cast(x.at(at), dtype), mean), inverse(at))

    def plain(at: At) -> Value:
        return cast(dy.at(at), dtype)

    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        body = _rows(
            ctx,
            x.sizes,
            inner,
            lambda at: _mul(plain(at), _read(weight, at[lead:], dtype)),
            normal,
            inverse,
            dtype,
            label,
        )
        grad_x = ctx.pointwise(body, x.sizes, ctx.meta(0).dtype, ctx.strides(0), label)
    if mask[1]:
        grad_weight = _result(
            ctx, 1, _sum(ctx, lambda at: _mul(plain(at), normal(at)), x.sizes, outer, label)
        )
    if mask[2]:
        grad_bias = _result(ctx, 2, _sum(ctx, plain, x.sizes, outer, label))
    return grad_x, grad_weight, grad_bias


@lower(aten.native_group_norm_backward.default)
def group_norm_backward(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    saved_mean: Ref,
    saved_inverse: Ref,
    weight: Ref | None,
    n: Any,
    c: Any,
    pixels: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Ref | None, ...]:
    dtype = compute_dtype(x.dtype)
    sizes = (x.sizes[0], groups, simplify(ctx.sizes.expr(c) // groups), product(x.sizes[2:]))
    grouped, slopes = x.reshape(sizes), dy.reshape(sizes)
    scale = None if weight is None else weight.reshape(sizes[1:3])
    label = "group_norm_backward"

    def inverse(at: At) -> Value:
        return cast(saved_inverse.at(at[:2]), dtype)

    def normal(at: At) -> Value:
        return _mul(
            make("sub", cast(grouped.at(at), dtype), cast(saved_mean.at(at[:2]), dtype)),
            inverse(at),
        )

    def plain(at: At) -> Value:
        return cast(slopes.at(at), dtype)

    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        body = _rows(
            ctx,
            sizes,
            [2, 3],
            lambda at: _mul(plain(at), _read(scale, at[1:3], dtype)),
            normal,
            inverse,
            dtype,
            label,
        )
        grad_x = ctx.pointwise(body, sizes, ctx.meta(0).dtype, label=label).reshape(x.sizes)
    if mask[1]:
        grad_weight = _result(
            ctx, 1, _sum(ctx, lambda at: _mul(plain(at), normal(at)), sizes, [0, 3], label)
        )
    if mask[2]:
        grad_bias = _result(ctx, 2, _sum(ctx, plain, sizes, [0, 3], label))
    return grad_x, grad_weight, grad_bias
