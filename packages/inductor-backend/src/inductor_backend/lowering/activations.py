"""Lowers activations with parameters, and pointwise gradients of no other module, to one loop node
each, as `pointwise` does (which has the activations that are one op).
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import At
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.pointwise import clamp, converted, elementwise, scaled_by


@elementwise(1, aten.hardtanh.default)
def hardtanh(x: Value, low: Any = -1, high: Any = 1) -> Value:
    return clamp(x, const(low, x.dtype), const(high, x.dtype))


def _polynomial(at: Value, coefficients: Sequence[float]) -> Value:
    """Returns a polynomial; the coefficient of the highest power is the first."""
    total, *rest = (const(number, at.dtype) for number in coefficients)
    for coefficient in rest:
        total = make("fma", total, at, coefficient)
    return total


#: ``-log2(Phi(x) / Phi(-x)) / x`` as a polynomial of x^2 up to `_END`; Phi is the normal distribution, of which
#: errors are below 1.3e-7 (least squares, weighted until the errors are level).
_LOG_ODDS, _END = (
    -1.8675989574279406e-11, -4.4884846950310475e-09, 3.774537447043258e-07,
    -1.1463240298326127e-05, 0.00015996710862964392, 9.256919292965904e-05, -0.10483317077159882,
    -2.3022098541259766,
), 33.64  # fmt: skip
#: ``-2 log2(e) sqrt(2 / pi) (1 + 0.044715 x^2)`` and ``2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2)``.
_TANH_ODDS, _TANH_SLOPE = (-0.10294324, -2.3022082), (0.2140644, 1.5957691)


def _log_odds(x: Value, approximate: str) -> Value:
    """Returns t, where ``gelu(x) = x / (1 + 2^t)``: that takes half the instructions of erf or tanh."""
    square = make("mul", x, x)
    if approximate == "tanh":
        return make("mul", x, _polynomial(square, _TANH_ODDS))
    return make("mul", x, _polynomial(make("minimum", square, const(_END, x.dtype)), _LOG_ODDS))


@lower(aten.gelu.default)
def gelu(ctx: Lowering, x: Any, approximate: str = "none") -> Ref:
    """On GPUs in terms that its gradient shares."""

    def body(at: At) -> Value:
        value = converted(ctx, x, at, True)
        if ctx.gpu and value.dtype == torch.float32:
            return make("mul", value, make("sigmoid_exp2", _log_odds(value, approximate)))
        return make({"none": "gelu_erf", "tanh": "gelu_tanh"}[approximate], value)

    return ctx.pointwise(body)


#: (Phi(-a) / exp(-a^2 / 2) - 1/2) / u as a polynomial of u = a / (1 + 0.3 a), the highest power first.
#: Errors of Phi(-a) are below 3.1e-8 (of eager's 1 + erf: 6e-8).
_TAIL = (
    -1.0492834e-05, 2.40718146e-05, 0.00036786744, -0.000460863754,
    -0.0188821219, 0.13031657, -0.398942232, 0.5,
)  # fmt: skip


@lower(aten.gelu_backward.default)
def gelu_backward(ctx: Lowering, dy: Any, x: Any, approximate: str = "none") -> Ref:
    """``dy * (Phi(x) + x exp(-x^2 / 2) / sqrt(2 pi))`` in float32, and the same for tanh's
    approximation of Phi (`decompositions` has the other forms)."""

    def body(at: At) -> Value:
        slope, value = (converted(ctx, operand, at, True) for operand in (dy, x))
        if approximate == "tanh":
            return make("mul", slope, _tanh_slope(value))
        bell = make("mul", make("mul", value, value), const(-0.5, value.dtype))
        if ctx.gpu:
            phi = make("sigmoid_exp2", _log_odds(value, approximate))
            bell = make("exp2", make("mul", bell, const(math.log2(math.e), value.dtype)))
        else:
            bell = make("exp", bell)
            phi = _normal(value, bell)
        density = const(0.3989422804014327, value.dtype)
        return make("mul", slope, make("fma", make("mul", value, bell), density, phi))

    return ctx.pointwise(body)


def _normal(x: Value, bell: Value) -> Value:
    """Returns Phi(x). bell: exp(-x^2 / 2), which vectors compute for the density as well."""
    a, unit = make("abs", x), const(1, x.dtype)
    u = make("div", a, make("fma", a, const(0.3, x.dtype), unit))
    tail = make("mul", _polynomial(u, _TAIL), bell)
    return make("where", make("lt", x, const(0, x.dtype)), tail, make("sub", unit, tail))


def _tanh_slope(x: Value) -> Value:
    """Returns the derivative of ``gelu(x, approximate="tanh") = x s``."""
    odds = _log_odds(x, "tanh")
    s, rest = make("sigmoid_exp2", odds), make("sigmoid_exp2", make("neg", odds))
    inner = _polynomial(make("mul", x, x), _TANH_SLOPE)
    return make("fma", make("mul", x, make("mul", s, rest)), inner, s)


@elementwise(1, aten.leaky_relu.default)
def leaky_relu(x: Value, slope: Any = 0.01) -> Value:
    below = make("mul", x, const(slope, x.dtype))
    return make("where", make("gt", x, const(0, x.dtype)), x, below)


def _relu6(value: Value) -> Value:
    shifted = make("add", value, const(3, value.dtype))
    return make("minimum", make("maximum", shifted, const(0, value.dtype)), const(6, value.dtype))


@elementwise(1, aten.hardswish.default)
def hardswish(x: Value) -> Value:
    return make("div", make("mul", x, _relu6(x)), const(6, x.dtype))


@elementwise(1, aten.hardsigmoid.default)
def hardsigmoid(x: Value) -> Value:
    return make("div", _relu6(x), const(6, x.dtype))


@elementwise(2, aten.hardsigmoid_backward.default)
def hardsigmoid_backward(dy: Value, x: Value) -> Value:
    sixth = 0.1666666716337204  # eager's kernel has it in float32 for all dtypes
    low, high = (const(end, x.dtype) for end in (-3, 3))
    inside = make("bit_and", make("gt", x, low), make("lt", x, high))
    return make("where", inside, make("mul", dy, const(sixth, x.dtype)), const(0, x.dtype))


@lower(aten.elu.default)
def elu(ctx: Lowering, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Ref:
    """For the CPU's kernel a zero is positive, for a GPU's negative: an alpha of infinity shows."""
    dtype = compute_dtype(ctx.meta().dtype)
    zero, factor = const(0, dtype), const(alpha if scale == 1 else alpha * scale, dtype)

    def body(at: At) -> Value:
        value = ctx.element(x, at, dtype)
        above = scaled_by(value, scale)
        below = make("mul", make("expm1", scaled_by(value, input_scale)), factor)
        if ctx.gpu:
            return make("where", make("gt", value, zero), above, below)
        return make("where", make("lt", value, zero), below, above)

    return ctx.pointwise(body)


@elementwise(1, aten.softplus.default)
def softplus(x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    scaled = scaled_by(x, beta)
    soft = make("div", make("log1p", make("exp", scaled)), const(beta, x.dtype))
    return make("where", make("gt", scaled, const(threshold, x.dtype)), x, soft)


@elementwise(2, aten.native_dropout_backward.default)  # the result is a float for integers, too
def dropout_backward(dy: Value, mask: Value, scale: float) -> Value:
    return make("mul", make("mul", dy, mask), const(scale, dy.dtype))


@functools.cache
def _vector_bytes(avx512: bool) -> int:
    """Returns the size of ATen's vectors on this processor; without AVX it is 32 on x86, too."""
    capability = torch.backends.cpu.get_cpu_capability()
    default = 16 if platform.machine() == "aarch64" else 32  # NEON's
    return {"AVX512": 64 if avx512 else 32, "DEFAULT": default, "SVE128": 16}.get(capability, 32)


def in_vectors(*operands: Any, avx512: bool = False) -> bool:
    """Returns whether kernels of ATen compute on these operands in vectors, on a CPU: where NaN is not
    less and not greater than a bound, vectors choose one branch and single elements the other. Fewer
    elements than two vectors hold are single. avx512: whether ATen has the kernel for AVX-512 too."""
    first = operands[0]
    sizes = (*first.shape, *(step for operand in operands for step in operand.stride()))
    if not all(isinstance(size, int) for size in sizes):
        return True
    alike = all(operand.stride() == first.stride() for operand in operands)
    dense = Lowering.is_dense(tuple(first.shape), first.stride())
    nbytes = first.numel() * first.element_size()
    return bool(alike and dense and nbytes >= 2 * _vector_bytes(avx512))


@lower(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(ctx: Lowering, dy: Any, x: Any, width: float) -> Ref:
    """Of NaN, vectors of the CPU's kernel give 0, single elements and a GPU the gradient."""
    dtype = compute_dtype(ctx.meta().dtype)
    inputs: Any = ctx.node.args[:2]
    single = ctx.gpu or not in_vectors(*(operand.meta["val"] for operand in inputs))
    low, high, zero = (const(value, dtype) for value in (-width, width, 0))

    def body(at: At) -> Value:
        slope, value = (ctx.element(value, at, dtype) for value in (dy, x))
        if single:
            inside = make("bit_and", make("ge", value, low), make("le", value, high))
            return make("where", inside, zero, slope)
        outside = make("bit_or", make("lt", value, low), make("gt", value, high))
        return make("where", outside, slope, zero)

    return ctx.pointwise(body)
