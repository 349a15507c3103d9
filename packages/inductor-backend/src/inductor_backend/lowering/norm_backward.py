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
from functools import partial, reduce
from typing import Any

from inductor_backend.ir.index_expr import Index, product, simplify, variables
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.normalization import At, inverse_std
from inductor_backend.lowering.reduction import as_number, count


def _mul(*values: Value) -> Value:
    """Multiplies from the left."""
    return reduce(partial(make, "mul"), values)


def _sum(
    ctx: Lowering, terms: Callable[[At], Value], sizes: Sequence[Any], dims: list[int], label: str
) -> Ref:
    wide = ctx.sum_dtype(terms(variables(sizes)).dtype)
    (total,) = ctx.reduction("sum", lambda at: cast(terms(at), wide), sizes, dims, wide, label)
    return total


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
    channel_sizes = [size if k == 1 else 1 for k, size in enumerate(x.sizes)]

    def mean(c: Index) -> Value:
        source = saved_mean if training else running_mean
        assert source is not None
        return cast(source.at([c]), dtype)

    def inverse(c: Index) -> Value:
        if training:
            assert saved_inverse is not None
            return cast(saved_inverse.at([c]), dtype)
        assert running_var is not None
        return inverse_std(ctx, cast(running_var.at([c]), dtype), eps)

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
        scale = inverse(c)
        if weight is not None:
            scale = _mul(scale, ctx.element(weight, [c], dtype))
        if not training:
            return _mul(slope(at), scale)
        assert total is not None and dot is not None
        row = broadcast(at, channel_sizes)
        average = make("div", cast(total.at(row), dtype), size)
        pull = _mul(make("div", cast(dot.at(row), dtype), size), inverse(c), inverse(c))
        return _mul(make("sub", make("sub", slope(at), average), _mul(centered(at), pull)), scale)

    grad_x = (
        ctx.pointwise(dx, x.sizes, ctx.meta(0).dtype, ctx.strides(0), label) if mask[0] else None
    )
    grad_weight = grad_bias = None
    if mask[1]:
        assert dot is not None
        scaled_dot = dot.reshape((x.sizes[1],))
        grad_weight = ctx.pointwise(
            lambda at: _mul(cast(scaled_dot.at(at), dtype), inverse(at[0])),
            ctx.shape(1),
            ctx.meta(1).dtype,
            label=label,
        )
    if mask[2]:
        assert total is not None
        grad_bias = ctx.as_output(total, 2)
    return grad_x, grad_weight, grad_bias


def _row_gradients(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    mean: Ref,
    rstd: Ref,
    weight: Ref | None,
    inner: list[int],
    outer: list[int],
    mask: Sequence[bool],
    strides: Sequence[Any] | None,
    label: str,
) -> tuple[Ref | None, ...]:
    """Returns the gradients of x, whose rows were normalized over the dimensions `inner`, and of
    weight and bias, which are sums over the dimensions `outer`. The operands broadcast to x."""
    dtype, sizes = compute_dtype(x.dtype), x.sizes

    def grad(at: At) -> Value:
        return ctx.element(dy, at, dtype)

    def slope(at: At) -> Value:
        return grad(at) if weight is None else _mul(grad(at), ctx.element(weight, at, dtype))

    def normal(at: At) -> Value:
        centered = make("sub", ctx.element(x, at, dtype), ctx.element(mean, at, dtype))
        return _mul(centered, ctx.element(rstd, at, dtype))

    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        total = _sum(ctx, slope, sizes, inner, label)
        dot = _sum(ctx, lambda at: _mul(slope(at), normal(at)), sizes, inner, label)
        size = as_number(count(sizes, inner), dtype)

        def body(at: At) -> Value:
            row = broadcast(at, total.sizes)
            average, pull = (make("div", cast(part.at(row), dtype), size) for part in (total, dot))
            rest = make("sub", make("sub", slope(at), average), _mul(normal(at), pull))
            return _mul(rest, ctx.element(rstd, at, dtype))

        grad_x = ctx.pointwise(body, sizes, ctx.meta(0).dtype, strides, label)
    if mask[1]:
        of_weight = _sum(ctx, lambda at: _mul(grad(at), normal(at)), sizes, outer, label)
        grad_weight = ctx.as_output(of_weight, 1)
    if mask[2]:
        grad_bias = ctx.as_output(_sum(ctx, grad, sizes, outer, label), 2)
    return grad_x, grad_weight, grad_bias


@lower(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    normalized: Sequence[Any],
    mean: Ref,
    rstd: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mask: Sequence[bool],
) -> tuple[Ref | None, ...]:
    lead = len(x.sizes) - len(normalized)
    outer, inner = list(range(lead)), list(range(lead, len(x.sizes)))
    strides, label = ctx.strides(0) if mask[0] else None, "layer_norm_backward"
    return _row_gradients(ctx, dy, x, mean, rstd, weight, inner, outer, mask, strides, label)


@lower(aten.native_group_norm_backward.default)
def group_norm_backward(
    ctx: Lowering,
    dy: Ref,
    x: Ref,
    mean: Ref,
    rstd: Ref,
    weight: Ref | None,
    n: Any,
    c: Any,
    pixels: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Ref | None, ...]:
    sizes = (x.sizes[0], groups, simplify(ctx.sizes.expr(c) // groups), product(x.sizes[2:]))
    rows, slopes = x.reshape(sizes), dy.reshape(sizes)
    scale = None if weight is None else weight.reshape(sizes[1:3]).unsqueeze(2)
    mean, rstd = (value.unsqueeze(2).unsqueeze(3) for value in (mean, rstd))
    dims, label = ([2, 3], [0, 3]), "group_norm_backward"
    grad_x, *rest = _row_gradients(ctx, slopes, rows, mean, rstd, scale, *dims, mask, None, label)
    return None if grad_x is None else grad_x.reshape(x.sizes), *rest
