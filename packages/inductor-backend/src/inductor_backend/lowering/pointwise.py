"""Lowers pointwise operators, each to one loop node over the result's shape.

Operands are converted to the dtype in which eager computes (the result's dtype for arithmetic, the
promoted dtype for comparisons); 16-bit floats compute in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.registry import Lowering, aten, lower
from tracer_core.plugin_api import operators

UNARY = {
    "exp": aten.exp.default,
    "exp2": aten.exp2.default,
    "expm1": aten.expm1.default,
    "log": aten.log.default,
    "log2": aten.log2.default,
    "log10": aten.log10.default,
    "log1p": aten.log1p.default,
    "sqrt": aten.sqrt.default,
    "rsqrt": aten.rsqrt.default,
    "sin": aten.sin.default,
    "cos": aten.cos.default,
    "tan": aten.tan.default,
    "asin": aten.asin.default,
    "acos": aten.acos.default,
    "atan": aten.atan.default,
    "sinh": aten.sinh.default,
    "cosh": aten.cosh.default,
    "tanh": aten.tanh.default,
    "asinh": aten.asinh.default,
    "acosh": aten.acosh.default,
    "atanh": aten.atanh.default,
    "erf": aten.erf.default,
    "erfc": aten.erfc.default,
    "sigmoid": aten.sigmoid.default,
    "silu": aten.silu.default,
    "neg": aten.neg.default,
    "abs": aten.abs.default,
    "relu": aten.relu.default,
}

#: Operators that return integers unchanged.
ROUNDING = {
    "floor": aten.floor.default,
    "ceil": aten.ceil.default,
    "trunc": aten.trunc.default,
    "round": aten.round.default,
    "sign": aten.sign.default,
}

BINARY = {
    "mul": [aten.mul.Tensor, aten.mul.Scalar],
    "maximum": [aten.maximum.default],
    "minimum": [aten.minimum.default],
    "bit_and": [aten.bitwise_and.Tensor, aten.bitwise_and.Scalar],
    "bit_or": [aten.bitwise_or.Tensor, aten.bitwise_or.Scalar],
    "bit_xor": [aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar],
    "fmod": [aten.fmod.Tensor, aten.fmod.Scalar],
    "mod": [aten.remainder.Tensor, aten.remainder.Scalar],
    "atan2": [aten.atan2.default],
    "floor_div": [aten.floor_divide.default, aten.floor_divide.Scalar],
    "shift_left": [
        *(aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar),
        *(aten.bitwise_left_shift.Scalar_Tensor, aten.__lshift__.Tensor, aten.__lshift__.Scalar),
    ],
    "shift_right": [
        *(aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar),
        *(aten.bitwise_right_shift.Scalar_Tensor, aten.__rshift__.Tensor, aten.__rshift__.Scalar),
    ],
}

COMPARISON = {
    "eq": [aten.eq.Tensor, aten.eq.Scalar],
    "ne": [aten.ne.Tensor, aten.ne.Scalar],
    "lt": [aten.lt.Tensor, aten.lt.Scalar],
    "le": [aten.le.Tensor, aten.le.Scalar],
    "gt": [aten.gt.Tensor, aten.gt.Scalar],
    "ge": [aten.ge.Tensor, aten.ge.Scalar],
}

LOGICAL = {
    "bit_and": aten.logical_and.default,
    "bit_or": aten.logical_or.default,
    "bit_xor": aten.logical_xor.default,
}


def _elementwise(name: str, integers_pass: bool = False) -> Any:
    """Returns a lowering that converts all operands to the result's dtype and applies one op."""

    def lowering(ctx: Lowering, *operands: Any) -> Ref:
        dtype = compute_dtype(ctx.meta().dtype)
        if integers_pass and not dtype.is_floating_point:
            return ctx.pointwise(lambda at: ctx.element(operands[0], at, dtype))
        return ctx.pointwise(lambda at: make(name, *(ctx.element(x, at, dtype) for x in operands)))

    return lowering


def _remainder(name: str) -> Any:
    """Rounds a number to the tensors' 16-bit dtype first, as eager does: a remainder is
    discontinuous."""

    def lowering(ctx: Lowering, *operands: Any) -> Ref:
        exact = ctx.meta().dtype
        dtype = compute_dtype(exact)

        def element(x: Any, at: Any) -> Value:
            value = ctx.element(x, at, dtype)
            return (
                value
                if isinstance(x, Ref) or exact == dtype
                else make("round_to", value, attr=exact)
            )

        return ctx.pointwise(lambda at: make(name, *(element(x, at) for x in operands)))

    return lowering


def _comparison(name: str) -> Any:
    """Rounds computed 16-bit operands as a store would: the gradient of amax compares elements with
    the stored maximum and divides by the number of equal ones."""

    def lowering(ctx: Lowering, a: Any, b: Any) -> Ref:
        exact = ctx.common_dtype(*ctx.node.args[:2])
        dtype = compute_dtype(exact)

        def element(x: Any, at: Any) -> Value:
            value = ctx.element(x, at, dtype)
            return value if exact == dtype else make("round_to", value, attr=exact)

        return ctx.pointwise(lambda at: make(name, element(a, at), element(b, at)))

    return lowering


def _logical(name: str) -> Any:
    def lowering(ctx: Lowering, a: Ref, b: Ref) -> Ref:
        return ctx.pointwise(
            lambda at: make(name, *(cast(ctx.element(x, at, x.dtype), torch.bool) for x in (a, b)))
        )

    return lowering


for _name, _target in UNARY.items():
    lower(_target)(_elementwise(_name))
for _name, _target in ROUNDING.items():
    lower(_target)(_elementwise(_name, integers_pass=_name != "sign"))
for _name, _targets in BINARY.items():
    lower(*_targets)(_remainder(_name) if _name in ("mod", "fmod") else _elementwise(_name))
for _name, _targets in COMPARISON.items():
    lower(*_targets)(_comparison(_name))
for _name, _target in LOGICAL.items():
    lower(_target)(_logical(_name))


def scaled_by(value: Value, alpha: Any) -> Value:
    """Returns alpha * value; no operation for 1."""
    return value if alpha == 1 else make("mul", value, const(alpha, value.dtype))


@lower(aten.add.Tensor, aten.add.Scalar)
def add(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    name = "bit_or" if dtype == torch.bool else "add"
    return ctx.pointwise(
        lambda at: make(
            name, ctx.element(a, at, dtype), scaled_by(ctx.element(b, at, dtype), alpha)
        )
    )


@lower(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    return ctx.pointwise(
        lambda at: make(
            "sub", ctx.element(a, at, dtype), scaled_by(ctx.element(b, at, dtype), alpha)
        )
    )


@lower(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> Ref:
    return (
        sub(ctx, b, a)
        if alpha == 1
        else ctx.pointwise(
            lambda at: make(
                "sub",
                ctx.element(b, at, ctx.meta().dtype),
                scaled_by(ctx.element(a, at, ctx.meta().dtype), alpha),
            )
        )
    )


_DIVISIONS = {None: "div", "trunc": "trunc_div", "floor": "floor_div"}


@lower(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(ctx: Lowering, a: Any, b: Any) -> Ref:
    return div_mode(ctx, a, b, rounding_mode=None)


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(ctx: Lowering, a: Any, b: Any, rounding_mode: str | None = None) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    name = _DIVISIONS[rounding_mode]
    return ctx.pointwise(
        lambda at: make(name, ctx.element(a, at, dtype), ctx.element(b, at, dtype))
    )


@lower(aten.reciprocal.default)
def reciprocal(ctx: Lowering, x: Ref) -> Ref:
    return div(ctx, 1, x)


@lower(aten.square.default)
def square(ctx: Lowering, x: Ref) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    return ctx.pointwise(
        lambda at: make("mul", ctx.element(x, at, dtype), ctx.element(x, at, dtype))
    )


@lower(aten.logical_not.default)
def logical_not(ctx: Lowering, x: Ref) -> Ref:
    return ctx.pointwise(lambda at: make("eq", ctx.element(x, at, x.dtype), const(0, x.dtype)))


@lower(aten.bitwise_not.default)
def bitwise_not(ctx: Lowering, x: Ref) -> Ref:
    return ctx.pointwise(lambda at: make("bit_not", ctx.element(x, at, x.dtype)))


@lower(aten.isnan.default)
def isnan(ctx: Lowering, x: Ref) -> Ref:
    return ctx.pointwise(
        lambda at: make("ne", ctx.element(x, at, x.dtype), ctx.element(x, at, x.dtype))
    )


@lower(aten.isinf.default)
def isinf(ctx: Lowering, x: Ref) -> Ref:
    if not x.dtype.is_floating_point:
        return ctx.pointwise(lambda at: const(False, torch.bool))
    return ctx.pointwise(
        lambda at: make("eq", make("abs", ctx.element(x, at, x.dtype)), const(math.inf, x.dtype))
    )


def power_of(x: Value, exponent: float | int) -> Value:
    """Raises x to a constant power, by multiplication where eager multiplies too."""
    by_hand = {
        0.5: lambda: make("sqrt", x),
        1: lambda: x,
        2: lambda: make("mul", x, x),
        3: lambda: make("mul", make("mul", x, x), x),
        -0.5: lambda: make("rsqrt", x),
        -1: lambda: make("div", const(1, x.dtype), x),
    }
    integral = not x.dtype.is_floating_point
    if exponent in by_hand and not (integral and exponent not in (1, 2, 3)):
        return by_hand[exponent]()
    return make("pow", x, const(exponent, x.dtype))


@lower(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Lowering, x: Ref, exponent: Any) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    if exponent == 0:
        return ctx.pointwise(lambda at: const(1, dtype))
    return ctx.pointwise(lambda at: power_of(ctx.element(x, at, dtype), exponent))


lower(aten.pow.Tensor_Tensor, aten.pow.Scalar)(_elementwise("pow"))


@lower(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(ctx: Lowering, condition: Ref, a: Any, b: Any) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    return ctx.pointwise(
        lambda at: make(
            "where",
            cast(ctx.element(condition, at, condition.dtype), torch.bool),
            ctx.element(a, at, dtype),
            ctx.element(b, at, dtype),
        )
    )


@lower(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(ctx: Lowering, x: Ref, mask: Ref, value: Any) -> Ref:
    return where(ctx, mask, value, x)


@lower(aten.clamp.default, aten.clamp.Tensor)
def clamp(ctx: Lowering, x: Ref, low: Any = None, high: Any = None) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        value = ctx.element(x, at, dtype)
        if low is not None:
            value = make("maximum", value, ctx.element(low, at, dtype))
        return make("minimum", value, ctx.element(high, at, dtype)) if high is not None else value

    return ctx.pointwise(body)


@lower(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(ctx: Lowering, x: Ref, low: Any) -> Ref:
    return clamp(ctx, x, low)


@lower(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(ctx: Lowering, x: Ref, high: Any) -> Ref:
    return clamp(ctx, x, None, high)


def _convert(ctx: Lowering, x: Ref, dtype: torch.dtype) -> Any:
    def body(at: Any) -> Value:
        value = ctx.element(x, at, dtype)
        # A conversion that the user wrote rounds as in eager, fused or not.
        return (
            make("round_to", value, attr=dtype)
            if compute_dtype(dtype) != dtype and x.dtype != dtype
            else value
        )

    return body


@lower(aten._to_copy.default)
def to_copy(ctx: Lowering, x: Ref, **kwargs: Any) -> Ref:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type not in ("cpu", "cuda"):
        raise unsupported("lower", f"conversion to device {device} is not built", ctx.node)
    if ctx.meta().dtype is torch.bool and x.is_whole and x.buffer.name in ctx.bits:
        return ctx.bits.pop(x.buffer.name)  # once: two conversions give two tensors
    return ctx.pointwise(_convert(ctx, x, ctx.meta().dtype), label="to")


@lower(operators("prims").convert_element_type.default)
def convert_element_type(ctx: Lowering, x: Ref, dtype: torch.dtype) -> Ref:
    return ctx.pointwise(_convert(ctx, x, dtype), label="to")


@lower(aten.addcmul.default)
def addcmul(ctx: Lowering, x: Ref, a: Ref, b: Ref, value: Any = 1) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        factor = make("mul", scaled_by(ctx.element(a, at, dtype), value), ctx.element(b, at, dtype))
        return make("add", ctx.element(x, at, dtype), factor)

    return ctx.pointwise(body)


@lower(aten.addcdiv.default)
def addcdiv(ctx: Lowering, x: Ref, a: Ref, b: Ref, value: Any = 1) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        factor = make("div", scaled_by(ctx.element(a, at, dtype), value), ctx.element(b, at, dtype))
        return make("add", ctx.element(x, at, dtype), factor)

    return ctx.pointwise(body)


@lower(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(ctx: Lowering, a: Ref, b: Ref, weight: Any) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        start, end, w = (ctx.element(x, at, dtype) for x in (a, b, weight))
        distance = make("sub", end, start)
        near = make("add", start, make("mul", w, distance))
        far = make("sub", end, make("mul", distance, make("sub", const(1, dtype), w)))
        return make("where", make("lt", make("abs", w), const(0.5, dtype)), near, far)

    return ctx.pointwise(body)


def _other_if_nan(kind: str) -> Any:
    """Returns a lowering of fmax/fmin, which prefer a number to NaN."""

    def lowering(ctx: Lowering, a: Any, b: Any) -> Ref:
        dtype = compute_dtype(ctx.meta().dtype)

        def body(at: Any) -> Value:
            x, y = ctx.element(a, at, dtype), ctx.element(b, at, dtype)
            if not dtype.is_floating_point:
                return make(kind, x, y)
            return make(
                "where", make("ne", x, x), y, make("where", make("ne", y, y), x, make(kind, x, y))
            )

        return ctx.pointwise(body)

    return lowering


lower(aten.fmax.default)(_other_if_nan("maximum"))
lower(aten.fmin.default)(_other_if_nan("minimum"))
