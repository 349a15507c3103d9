"""Lowers special functions and rarer binary functions to pointwise nodes, or to an operator call
for float64 where our form is float32 only.

NaN, infinities and signed zeros come out as in eager.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.fallback import call_fallback
from inductor_backend.lowering.registry import Lowering, aten, lower

#: Unary operators whose own form is float32 only.
SINGLE = {
    "erfinv": aten.erfinv.default,
    "digamma": aten.digamma.default,
    "i0": aten.i0.default,
    "i0e": aten.special_i0e.default,
    "i1": aten.special_i1.default,
    "i1e": aten.special_i1e.default,
}

#: Binary operators that are one op.
PAIRS = {
    "copysign": [aten.copysign.Tensor, aten.copysign.Scalar],
    "hypot": [aten.hypot.default],
    "nextafter": [aten.nextafter.default],
    "gcd": [aten.gcd.default],
    "lcm": [aten.lcm.default],
}


def _single(name: str) -> Any:
    def lowering(ctx: Lowering, x: Ref) -> Ref:
        dtype = compute_dtype(ctx.meta().dtype)
        if dtype != torch.float32:
            return call_fallback(ctx, ctx.node.target, [x], {})
        return ctx.pointwise(lambda at: make(name, ctx.element(x, at, dtype)))

    return lowering


def _pair(name: str) -> Any:
    def lowering(ctx: Lowering, a: Any, b: Any) -> Ref:
        dtype = compute_dtype(ctx.meta().dtype)
        if (
            name == "nextafter" and ctx.meta().dtype != dtype
        ):  # nextafter of 16-bit floats is not that of float32
            return call_fallback(ctx, ctx.node.target, [a, b], {})
        return ctx.pointwise(
            lambda at: make(name, ctx.element(a, at, dtype), ctx.element(b, at, dtype))
        )

    return lowering


for _name, _target in SINGLE.items():
    lower(_target)(_single(_name))
for _name, _targets in PAIRS.items():
    lower(*_targets)(_pair(_name))


@lower(aten.heaviside.default)
def heaviside(ctx: Lowering, x: Ref, at_zero: Ref) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        value, zero = ctx.element(x, at, dtype), const(0, dtype)
        step = make("where", make("gt", value, zero), const(1, dtype), zero)
        return make("where", make("eq", value, zero), ctx.element(at_zero, at, dtype), step)

    return ctx.pointwise(body)


@lower(
    aten.special_xlog1py.default,
    aten.special_xlog1py.other_scalar,
    aten.special_xlog1py.self_scalar,
)
def xlog1py(ctx: Lowering, x: Any, y: Any) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        a, b = ctx.element(x, at, dtype), ctx.element(y, at, dtype)
        zero = make(
            "where",
            make("eq", a, const(0, dtype)),
            const(0, dtype),
            make("mul", a, make("log1p", b)),
        )
        return make("where", make("ne", b, b), const(math.nan, dtype), zero)

    return ctx.pointwise(body)


@lower(aten.special_entr.default)
def entr(ctx: Lowering, x: Ref) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)

    def body(at: Any) -> Value:
        a, zero = ctx.element(x, at, dtype), const(0, dtype)
        inner = make("mul", make("neg", a), make("log", a))
        outside = make("where", make("eq", a, zero), zero, const(-math.inf, dtype))
        value = make("where", make("gt", a, zero), inner, outside)
        return make("where", make("ne", a, a), a, value)

    return ctx.pointwise(body)
