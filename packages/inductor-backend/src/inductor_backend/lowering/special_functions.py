"""Lowers special functions and rarer binary functions to pointwise nodes, or to an operator call
for float64 where our form is float32 only.

NaN, infinities and signed zeros come out as in eager.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from inductor_backend.lowering.fallback import call_aten
from inductor_backend.lowering.pointwise import elementwise

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
    "gcd": [aten.gcd.default],
    "lcm": [aten.lcm.default],
}


def _single(name: str) -> Any:
    def lowering(ctx: Lowering, x: Ref) -> Ref:
        dtype = compute_dtype(ctx.meta().dtype)
        if dtype != torch.float32:
            return call_aten(ctx, x)
        return ctx.pointwise(lambda at: make(name, ctx.element(x, at, dtype)))

    return lowering


@lower(aten.nextafter.default)
def nextafter(ctx: Lowering, a: Ref, b: Ref) -> Ref:
    dtype = ctx.meta().dtype
    if compute_dtype(dtype) != dtype:  # nextafter of 16-bit floats is not that of float32
        return call_aten(ctx, a, b)
    return ctx.pointwise(
        lambda at: make("nextafter", ctx.element(a, at, dtype), ctx.element(b, at, dtype))
    )


for _name, _target in SINGLE.items():
    lower(_target)(_single(_name))
for _name, _targets in PAIRS.items():
    elementwise(2, *_targets)(partial(make, _name))


@elementwise(2, aten.heaviside.default)
def heaviside(x: Value, at_zero: Value) -> Value:
    zero = const(0, x.dtype)
    step = make("where", make("gt", x, zero), const(1, x.dtype), zero)
    return make("where", make("eq", x, zero), at_zero, step)


@elementwise(2, aten.special_xlog1py.default, aten.special_xlog1py.other_scalar,
             aten.special_xlog1py.self_scalar)  # fmt: skip
def xlog1py(x: Value, y: Value) -> Value:
    zero, product = const(0, x.dtype), make("mul", x, make("log1p", y))
    value = make("where", make("eq", x, zero), zero, product)
    return make("where", make("ne", y, y), const(math.nan, x.dtype), value)


@elementwise(1, aten.special_entr.default)
def entr(x: Value) -> Value:
    zero = const(0, x.dtype)
    inner = make("mul", make("neg", x), make("log", x))
    outside = make("where", make("eq", x, zero), zero, const(-math.inf, x.dtype))
    value = make("where", make("gt", x, zero), inner, outside)
    return make("where", make("ne", x, x), x, value)
