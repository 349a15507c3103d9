"""Lowers batch, layer and group norm to Welford reductions (where statistics come from the data)
and one pointwise node.

Scale and shift per channel are computed first (weight / sqrt(var + eps), bias - mean * scale), as
in eager's CPU kernels, so that each element needs one multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import At, product, simplify
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.reduction import (
    as_number,
    count,
    mean_of_steps,
    variance_nodes,
    vecdot,
)

PerChannel = Callable[[At], Value]


def inverse_std(ctx: Lowering, variance: Value, eps: float) -> Value:
    """Returns 1 / sqrt(variance + eps), on GPUs by `rsqrt` as eager's kernels there."""
    shifted = make("add", variance, const(eps, variance.dtype))
    if ctx.gpu:
        return make("rsqrt", shifted)
    return make("div", const(1, variance.dtype), make("sqrt", shifted))


def _moments(
    ctx: Lowering, x: Ref, dims: list[int]
) -> tuple[Ref, Ref, Callable[[At, float], Value]]:
    """Returns the mean, the sum of squared distances and what computes the inverse deviation, all with
    kept dims. The sum is in float64, on GPUs as in eager's kernels there: squares of large float32 are
    beyond it, and an inverse of 0 would hide that. Of float64 such a row gives NaN, as in eager."""
    dtype = compute_dtype(x.dtype)
    wide = dtype if ctx.gpu else torch.float64
    average, squares, _ = variance_nodes(ctx, x, dims, 0, dtype, wide)
    size = as_number(count(x.sizes, dims), wide)

    def inverse(at: At, eps: float) -> Value:
        variance = make("div", squares.at(broadcast(at, squares.sizes)), size)
        if ctx.gpu or wide != dtype:
            return cast(inverse_std(ctx, variance, eps), dtype)
        beyond = make("eq", variance, const(float("inf"), dtype))
        return make("where", beyond, const(float("nan"), dtype), inverse_std(ctx, variance, eps))

    return average, squares, inverse


def _scale_shift(
    x: Value, mean: Value, inverse: Value, weight: Value | None, bias: Value | None
) -> Value:
    scale = inverse if weight is None else make("mul", inverse, weight)
    shift = make("mul", mean, scale)
    shift = make("neg", shift) if bias is None else make("sub", bias, shift)
    return make("fma", x, scale, shift)


def _centered(
    x: Value, mean: Value, inverse: Value, weight: Value | None, bias: Value | None
) -> Value:
    value = make("mul", make("sub", x, mean), inverse)
    if weight is None or bias is None:
        value = value if weight is None else make("mul", value, weight)
        return value if bias is None else make("add", value, bias)
    return make("fma", value, weight, bias)


def _parameter(
    ctx: Lowering, parameter: Ref | None, position: At, dtype: torch.dtype
) -> Value | None:
    return None if parameter is None else cast(parameter.at(position), dtype)


def _batch_norm_apply(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    mean: PerChannel,
    inverse: PerChannel,
) -> Ref:
    first = ctx.meta(0)
    dtype = compute_dtype(first.dtype)
    normalized = _centered if ctx.gpu else _scale_shift  # as eager's kernels

    def body(at: At) -> Value:
        c = [at[1]]
        shift = _parameter(ctx, bias, c, dtype)
        if shift is None and not ctx.gpu:
            shift = const(0, dtype)  # eager subtracts from it: there is no -0.0
        return normalized(
            cast(x.at(at), dtype), mean(c), inverse(c), _parameter(ctx, weight, c, dtype), shift
        )

    return ctx.pointwise(body, x.sizes, first.dtype, ctx.strides(0), label="batch_norm")


def _running(ctx: Lowering, old: Ref, new: PerChannel, momentum: float) -> Ref:
    dtype = compute_dtype(old.dtype)

    def body(at: At) -> Value:
        old_part = make("mul", cast(old.at(at), dtype), const(1 - momentum, dtype))
        return make("add", old_part, make("mul", cast(new(at), dtype), const(momentum, dtype)))

    return ctx.pointwise(body, old.sizes, old.dtype, label="running_stats")


def _train(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Ref, Ref, Ref, PerChannel, PerChannel]:
    """Returns (output, saved mean, saved inverse std, mean, unbiased variance)."""
    dtype, channels = compute_dtype(x.dtype), (x.sizes[1],)
    dims = [k for k in range(len(x.sizes)) if k != 1]
    average, squares, inverse = _moments(ctx, x, dims)
    saved = ctx.pointwise(lambda at: inverse(at, eps), average.sizes, dtype, label="batch_norm")
    average, squares, saved = (value.reshape(channels) for value in (average, squares, saved))
    output = _batch_norm_apply(ctx, x, weight, bias, average.at, saved.at)
    less_one = as_number(count(x.sizes, dims), squares.dtype)
    less_one = make("sub", less_one, const(1, squares.dtype))
    return output, average, saved, average.at, lambda c: make("div", squares.at(c), less_one)


def _infer(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref,
    running_var: Ref,
    eps: float,
) -> Ref:
    dtype = compute_dtype(x.dtype)
    if running_mean.dtype != x.dtype:
        dtype = torch.promote_types(dtype, compute_dtype(running_mean.dtype))
    return _batch_norm_apply(
        ctx,
        x,
        weight,
        bias,
        lambda c: cast(running_mean.at(c), dtype),
        lambda c: inverse_std(ctx, cast(running_var.at(c), dtype), eps),
    )


def _empty(ctx: Lowering, position: int) -> Ref:
    return ctx.pointwise(
        lambda at: const(0, ctx.meta(position).dtype), ctx.shape(position), ctx.meta(position).dtype
    )


@lower(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref,
    running_var: Ref,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    if not training:
        output = _infer(ctx, x, weight, bias, running_mean, running_var, eps)
        return output, _empty(ctx, 1), _empty(ctx, 2), running_mean, running_var
    output, mean, saved, at_mean, at_var = _train(ctx, x, weight, bias, eps)
    used = ctx.used_outputs()
    new_mean = _running(ctx, running_mean, at_mean, momentum) if 3 in used else None
    new_var = _running(ctx, running_var, at_var, momentum) if 4 in used else None
    statistics = ctx.as_output(mean, 1, "saved"), ctx.as_output(saved, 2, "saved")
    return output, *statistics, new_mean, new_var


@lower(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref,
    running_var: Ref,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    output = _infer(ctx, x, weight, bias, running_mean, running_var, eps)
    used = ctx.used_outputs()
    return output, *(_empty(ctx, k) if k in used else None for k in (1, 2))


@lower(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    return _trained(ctx, x, weight, bias, eps)


def _trained(
    ctx: Lowering, x: Ref, weight: Ref | None, bias: Ref | None, eps: float
) -> tuple[Ref, Ref, Ref]:
    output, mean, saved, *_ = _train(ctx, x, weight, bias, eps)
    return output, ctx.as_output(mean, 1, "saved"), ctx.as_output(saved, 2, "saved")


@lower(aten.native_batch_norm.default)
def native_batch_norm(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    running_mean: Ref | None,
    running_var: Ref | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    if training and running_mean is not None:
        raise unsupported(
            "lower",
            "batch norm that updates its statistics in place: functionalise it first",
            ctx.node,
        )
    if training or running_mean is None or running_var is None:
        return _trained(ctx, x, weight, bias, eps)
    return batch_norm_inference(ctx, x, weight, bias, running_mean, running_var, momentum, eps)


@lower(aten.native_layer_norm.default)
def native_layer_norm(
    ctx: Lowering,
    x: Ref,
    normalized: Sequence[Any],
    weight: Ref | None,
    bias: Ref | None,
    eps: float,
) -> tuple[Any, ...]:
    first = ctx.meta(0)
    dtype = compute_dtype(x.dtype)
    lead = len(x.sizes) - len(normalized)
    dims = list(range(lead, len(x.sizes)))
    average, squares, inverse = _moments(ctx, x, dims)
    saved = ctx.pointwise(lambda at: inverse(at, eps), average.sizes, dtype, label="layer_norm")

    def body(at: At) -> Value:
        row = broadcast(at, average.sizes)
        scale = _parameter(ctx, weight, at[lead:], dtype)
        shift = _parameter(ctx, bias, at[lead:], dtype)
        if shift is None and not ctx.gpu:
            shift = const(0, dtype)  # eager adds it: there is no -0.0
        return _centered(cast(x.at(at), dtype), average.at(row), saved.at(row), scale, shift)

    output = ctx.pointwise(body, x.sizes, first.dtype, ctx.strides(0), label="layer_norm")
    mean = mean_of_steps(ctx, average, squares, count(x.sizes, dims), ctx.shape(1))
    return output, mean, ctx.as_output(saved, 2, "saved")


@lower(aten.native_group_norm.default)
def native_group_norm(
    ctx: Lowering,
    x: Ref,
    weight: Ref | None,
    bias: Ref | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple[Any, ...]:
    dtype = compute_dtype(x.dtype)
    channels = ctx.sizes.expr(c)
    rows = (x.sizes[0], groups, simplify(channels // groups), product(x.sizes[2:]))
    grouped = x.reshape(rows)
    average, squares, inverse = _moments(ctx, grouped, [2, 3])
    saved = ctx.pointwise(lambda at: inverse(at, eps), average.sizes, dtype, label="group_norm")
    per_channel = None if weight is None else weight.reshape((groups, rows[2]))
    shift = None if bias is None else bias.reshape((groups, rows[2]))

    def body(at: At) -> Value:
        row, channel = broadcast(at, average.sizes), [at[1], at[2]]
        return _scale_shift(
            cast(grouped.at(at), dtype),
            average.at(row),
            saved.at(row),
            _parameter(ctx, per_channel, channel, dtype),
            _parameter(ctx, shift, channel, dtype),
        )

    output = ctx.pointwise(body, rows, ctx.meta(0).dtype, label="group_norm")
    mean = mean_of_steps(ctx, average, squares, product(rows[2:]), ctx.shape(1))
    return output.reshape(x.sizes), mean, ctx.as_output(saved, 2, "saved")


@lower(aten._fused_rms_norm.default)
def rms_norm(
    ctx: Lowering, x: Ref, normalized: Sequence[Any], weight: Ref | None, eps: float | None
) -> tuple[Any, ...]:
    first = ctx.meta(0)
    dtype = compute_dtype(x.dtype)
    lead = len(x.sizes) - len(normalized)
    dims = list(range(lead, len(x.sizes)))
    total = vecdot(ctx, x, x, dims, "rms_norm")
    size = as_number(count(x.sizes, dims), dtype)
    least = torch.finfo(x.dtype).eps if eps is None else eps
    saved = ctx.pointwise(
        lambda at: inverse_std(ctx, make("div", total.at(at), size), least),
        total.sizes,
        dtype,
        label="rms_norm",
    )

    def body(at: At) -> Value:
        value = make("mul", cast(x.at(at), dtype), saved.at(broadcast(at, saved.sizes)))
        scale = _parameter(ctx, weight, at[lead:], dtype)
        return value if scale is None else make("mul", value, scale)

    output = ctx.pointwise(body, x.sizes, first.dtype, ctx.strides(0), label="rms_norm")
    return output, ctx.as_output(saved, 1, "saved")
