"""Lowers activations with parameters, and pointwise gradients of no other module, to one loop node
each, as `pointwise` does (which has the activations that are one op).
"""

from __future__ import annotations

from typing import Any

from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.pointwise import clamp, scaled_by
from inductor_backend.lowering.registry import Lowering, aten, lower


@lower(aten.hardtanh.default)
def hardtanh(ctx: Lowering, x: Ref, low: Any = -1, high: Any = 1) -> Ref:
    return clamp(ctx, x, low, high)


@lower(aten.gelu.default)
def gelu(ctx: Lowering, x: Ref, approximate: str = "none") -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    name = {"none": "gelu_erf", "tanh": "gelu_tanh"}[approximate]
    return ctx.pointwise(lambda at: make(name, ctx.element(x, at, dtype)))


@lower(aten.leaky_relu.default)
def leaky_relu(ctx: Lowering, x: Ref, slope: Any = 0.01) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        value = ctx.element(x, at, dtype)
        return make(
            "where",
            make("gt", value, const(0, dtype)),
            value,
            make("mul", value, const(slope, dtype)),
        )

    return ctx.pointwise(body)


def _relu6(value: Value) -> Value:
    shifted = make("add", value, const(3, value.dtype))
    return make("minimum", make("maximum", shifted, const(0, value.dtype)), const(6, value.dtype))


@lower(aten.hardswish.default)
def hardswish(ctx: Lowering, x: Ref) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        value = ctx.element(x, at, dtype)
        return make("div", make("mul", value, _relu6(value)), const(6, dtype))

    return ctx.pointwise(body)


@lower(aten.hardsigmoid.default)
def hardsigmoid(ctx: Lowering, x: Ref) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    return ctx.pointwise(lambda at: make("div", _relu6(ctx.element(x, at, dtype)), const(6, dtype)))


@lower(aten.elu.default)
def elu(ctx: Lowering, x: Ref, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        value = ctx.element(x, at, dtype)
        negative = make(
            "mul",
            make("expm1", scaled_by(value, input_scale)),
            const(alpha if scale == 1 else alpha * scale, dtype),
        )
        return make("where", make("gt", value, const(0, dtype)), scaled_by(value, scale), negative)

    return ctx.pointwise(body)


@lower(aten.softplus.default)
def softplus(ctx: Lowering, x: Ref, beta: Any = 1, threshold: Any = 20) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        value = ctx.element(x, at, dtype)
        scaled = scaled_by(value, beta)
        soft = make("div", make("log1p", make("exp", scaled)), const(beta, dtype))
        return make("where", make("gt", scaled, const(threshold, dtype)), value, soft)

    return ctx.pointwise(body)


@lower(aten.native_dropout_backward.default)
def dropout_backward(ctx: Lowering, dy: Ref, mask: Ref, scale: float) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)  # the result is a float for integers, too

    def body(at: Any) -> Value:
        kept = make("mul", cast(dy.at(at), dtype), cast(mask.at(at), dtype))
        return make("mul", kept, const(scale, dtype))

    return ctx.pointwise(body)


@lower(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(ctx: Lowering, dy: Ref, x: Ref, width: float) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        here = ctx.element(x, at, dtype)
        inside = make(
            "bit_and",
            make("ge", here, const(-width, dtype)),
            make("le", here, const(width, dtype)),
        )
        return make("where", inside, const(0, dtype), ctx.element(dy, at, dtype))

    return ctx.pointwise(body)
