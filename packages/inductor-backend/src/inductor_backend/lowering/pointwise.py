"""Lowers pointwise operators, each to one loop node over the result's shape.

Operands are converted to the dtype in which eager computes (the result's dtype for arithmetic, the
promoted dtype for comparisons); 16-bit floats compute in float32.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.graph_meta import OF_STORED_VALUES
from inductor_backend.ir.index_expr import At, product
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, cast, const, make
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten, lower
from tracer_core.plugin_api import operators

_Values = TypeVar("_Values", bound=Callable[..., Value])

#: Operators of one operand that are one op of the same name.
UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh"
    " acosh atanh erf erfc sigmoid silu neg abs relu sign"
)

#: The same, but integers are returned unchanged.
ROUNDING = "floor ceil trunc round"

#: Comparisons of a tensor with a tensor or a scalar, each one op of the same name.
COMPARISONS = "eq ne lt le gt ge"

BINARY = {
    "mul": [aten.mul.Tensor, aten.mul.Scalar],
    "maximum": [aten.maximum.default],
    "minimum": [aten.minimum.default],
    "bit_and": [aten.bitwise_and.Tensor, aten.bitwise_and.Scalar, aten.bitwise_and.Scalar_Tensor],
    "bit_or": [aten.bitwise_or.Tensor, aten.bitwise_or.Scalar, aten.bitwise_or.Scalar_Tensor],
    "bit_xor": [aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar, aten.bitwise_xor.Scalar_Tensor],
    "atan2": [aten.atan2.default],
    "fmod": [aten.fmod.Tensor, aten.fmod.Scalar],
    "mod": [aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor],
    "pow": [aten.pow.Tensor_Tensor],
    "shift_left": [
        *(aten.bitwise_left_shift.Tensor, aten.bitwise_left_shift.Tensor_Scalar),
        *(aten.bitwise_left_shift.Scalar_Tensor, aten.__lshift__.Tensor, aten.__lshift__.Scalar),
    ],
    "shift_right": [
        *(aten.bitwise_right_shift.Tensor, aten.bitwise_right_shift.Tensor_Scalar),
        *(aten.bitwise_right_shift.Scalar_Tensor, aten.__rshift__.Tensor, aten.__rshift__.Scalar),
    ],
}


def converted(ctx: Lowering, x: Any, at: At, keeps_numbers: bool) -> Value:
    """Returns an operand's element in the result's dtype, rounded to it where that has 16 bits and the
    operand another dtype, as TensorIterator does. keeps_numbers: eager's kernel takes a number (or a
    tensor without dimensions) in float32."""
    exact = ctx.meta().dtype
    dtype = compute_dtype(exact)
    value = ctx.element(x, at, dtype)
    single = not isinstance(x, Ref) or not x.sizes
    if exact == dtype or (single and keeps_numbers):
        return value
    if isinstance(x, Ref) and x.dtype in (exact, torch.bool):
        return value
    return make("round_to", value, attr=exact)


def elementwise(
    operands: int, *targets: Any, keeps_numbers: bool = True
) -> Callable[[_Values], _Values]:
    """Registers a function of values as the lowering of operators. Its first `operands` arguments
    are the elements of tensors and scalars, converted to the dtype in which eager computes the
    result (None stays None); it gets the other arguments as they are. keeps_numbers: see
    `converted`."""

    def register(fn: _Values) -> _Values:
        def lowering(ctx: Lowering, *args: Any, **kwargs: Any) -> Ref:
            def body(at: At) -> Value:
                inputs = (
                    None if x is None else converted(ctx, x, at, keeps_numbers)
                    for x in args[:operands]
                )  # fmt: skip
                return fn(*inputs, *args[operands:], **kwargs)

            return ctx.pointwise(body)

        lower(*targets)(lowering)
        return fn

    return register


def _rounding(name: str) -> Callable[[Value], Value]:
    return lambda x: make(name, x) if x.dtype.is_floating_point else x


def _of_stored(name: str) -> Any:
    """Rounds computed 16-bit operands as a store would: the gradient of amax compares elements with
    the stored maximum and divides by the number of equal ones; powers of a number that rounds to 0
    are discontinuous."""

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


for _name in UNARY.split():
    elementwise(1, getattr(aten, _name).default)(partial(make, _name))
for _name in ROUNDING.split():
    elementwise(1, getattr(aten, _name).default)(_rounding(_name))
for _name, _targets in BINARY.items():
    elementwise(2, *_targets, keeps_numbers=_name == "mul")(partial(make, _name))
for _name in COMPARISONS.split():
    lower(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(_of_stored(_name))
for _name in ("and", "or", "xor"):
    lower(getattr(aten, f"logical_{_name}").default)(_logical(f"bit_{_name}"))
lower(aten.pow.Scalar)(_of_stored("pow"))


def scaled_by(value: Value, alpha: Any) -> Value:
    """Returns alpha * value; no operation for 1."""
    return value if alpha == 1 else make("mul", value, const(alpha, value.dtype))


def _with_scaled(name: str, a: Value, b: Value, alpha: Any, exact: torch.dtype) -> Value:
    """Returns a + alpha * b, or a - alpha * b, of floats rounded once as in eager. exact: dtype of
    alpha."""
    if alpha == 1 or not b.dtype.is_floating_point:
        return make(name, a, scaled_by(b, alpha))
    factor = const(alpha, b.dtype)
    if exact != b.dtype:
        factor = make("round_to", factor, attr=exact)
    return make("fma", b, factor if name == "add" else make("neg", factor), a)


def _sum(name: str, transposed: bool = False) -> Callable[..., Ref]:
    """Lowers a sum or difference. The CPU's kernels take numbers and alpha in the tensors' 16-bit
    dtype, a GPU's in float32."""

    def lowering(ctx: Lowering, a: Any, b: Any, alpha: Any = 1) -> Ref:
        exact = compute_dtype(ctx.meta().dtype) if ctx.gpu else ctx.meta().dtype
        first, second = (b, a) if transposed else (a, b)
        kind = "bit_or" if name == "add" and exact == torch.bool else name

        def body(at: At) -> Value:
            left, right = (converted(ctx, value, at, ctx.gpu) for value in (first, second))
            return _with_scaled(kind, left, right, alpha, exact)

        return ctx.pointwise(body)

    return lowering


add = lower(aten.add.Tensor, aten.add.Scalar)(_sum("add"))
lower(aten.sub.Tensor, aten.sub.Scalar)(_sum("sub"))
lower(aten.rsub.Tensor, aten.rsub.Scalar)(_sum("sub", transposed=True))


_DIVISIONS = {None: "div", "trunc": "trunc_div", "floor": "floor_div"}


def _inverse(number: float) -> float:
    """Returns 1 / number in float32."""
    divisor = ctypes.c_float(number).value
    return ctypes.c_float(1 / divisor).value if divisor else math.copysign(math.inf, divisor)


@lower(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def div(ctx: Lowering, a: Any, b: Any) -> Ref:
    """Lowers a division. Quotients of 16 bits by a number are products with its inverse on GPUs, as
    eager's are; those of float32 are not: 41 * (1 / 41) is less than 1."""
    dtype = compute_dtype(ctx.meta().dtype)
    inverse = None
    if (
        ctx.gpu
        and isinstance(b, (int, float))
        and ctx.meta().dtype
        in (
            torch.bfloat16,
            torch.float16,
        )
    ):
        inverse = const(_inverse(b), dtype)

    def body(at: At) -> Value:
        value = converted(ctx, a, at, True)
        if inverse is not None:
            return make("mul", value, inverse)
        return make("div", value, converted(ctx, b, at, True))

    return ctx.pointwise(body)


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_with_mode(ctx: Lowering, a: Any, b: Any, rounding_mode: str | None = None) -> Ref:
    exact = ctx.meta().dtype
    dtype = compute_dtype(exact)
    name = _DIVISIONS[rounding_mode]
    single = not isinstance(b, Ref) or (not ctx.gpu and product(b.sizes) == 1)
    in_steps = _IN_16_BITS.get(name) if exact != dtype and not single else None

    def body(at: At) -> Value:
        operands = ctx.element(a, at, dtype), ctx.element(b, at, dtype)
        return make(name, *operands) if in_steps is None else in_steps(*operands, exact)

    return ctx.pointwise(body)


@lower(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(ctx: Lowering, a: Any, b: Any) -> Ref:
    return div_with_mode(ctx, a, b, "floor")


def _truncated(a: Value, b: Value, dtype: torch.dtype) -> Value:
    return make("trunc", make("round_to", make("div", a, b), attr=dtype))


def _floored(a: Value, b: Value, dtype: torch.dtype) -> Value:
    """Divides as c10::div_floor_floating of 16-bit floats, which rounds after each operation."""
    zero, unit = const(0, a.dtype), const(1, a.dtype)

    def rounded(name: str, x: Value, y: Value) -> Value:
        return make("round_to", make(name, x, y), attr=dtype)

    rest, direct = make("fmod", a, b), rounded("div", a, b)
    quotient = rounded("div", rounded("sub", a, rest), b)
    other_sign = make("bit_xor", make("lt", b, zero), make("lt", rest, zero))
    below = make("bit_and", make("ne", rest, zero), other_sign)
    quotient = make("where", below, rounded("sub", quotient, unit), quotient)
    floor = make("floor", quotient)
    above = make("gt", rounded("sub", quotient, floor), const(0.5, a.dtype))
    floor = make("where", above, rounded("add", floor, unit), floor)
    floor = make("where", make("eq", quotient, zero), make("mul", zero, direct), floor)
    return make("where", make("eq", b, zero), direct, floor)


#: Divisions of 16-bit tensors that kernels of ATen compute in steps of 16 bits. By a single number they
#: compute in float32.
_IN_16_BITS: dict[str, Callable[[Value, Value, torch.dtype], Value]] = {
    "trunc_div": _truncated, "floor_div": _floored,
}  # fmt: skip


@elementwise(1, aten.reciprocal.default)
def reciprocal(x: Value) -> Value:
    return make("div", const(1, x.dtype), x)


@elementwise(1, aten.square.default)
def square(x: Value) -> Value:
    return make("mul", x, x)


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


def power_of(x: Value, exponent: float | int, roots: bool = True) -> Value:
    """Raises x to a constant power, by multiplication and (roots) by a square root where eager does."""
    by_hand = {
        0.5: lambda: make("sqrt", x),
        1: lambda: x,
        2: lambda: make("mul", x, x),
        3: lambda: make("mul", make("mul", x, x), x),
        -0.5: lambda: make("rsqrt", x),
        -1: lambda: make("div", const(1, x.dtype), x),
    }
    integral = not x.dtype.is_floating_point
    general = exponent not in (1, 2, 3) if integral else not roots and exponent in (0.5, -0.5)
    if exponent in by_hand and not general:
        return by_hand[exponent]()
    known = isinstance(exponent, (int, float)) and math.isfinite(exponent)
    if x.dtype is torch.float32 and known and abs(exponent) > 2**24:
        # Whether such an exponent is odd decides the sign; float32 has the even ones only.
        wide = make("pow", cast(x, torch.float64), const(exponent, torch.float64))
        return cast(wide, torch.float32)
    return make("pow", x, const(exponent, x.dtype))


@lower(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Lowering, x: Ref, exponent: Any) -> Ref:
    """Kernels of ATen take the exponent in the tensor's 16-bit dtype."""
    exact = ctx.meta().dtype
    dtype = compute_dtype(exact)
    if exact != dtype and isinstance(exponent, (int, float)):
        exponent = torch.tensor(exponent, dtype=torch.float64).to(exact).item()
    roots = ctx.gpu or exact is not torch.float16  # ATen's pow, which is inf for (-inf) ** 0.5

    def body(at: At) -> Value:
        value = converted(ctx, x, at, True)
        return const(1, dtype) if exponent == 0 else power_of(value, exponent, roots)

    return ctx.pointwise(body)


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


@elementwise(3, aten.clamp.Tensor, aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp(x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    # Of two zeros the second one is the result: the element, as in eager.
    x = x if low is None else make("maximum", low, x)
    return x if high is None else make("minimum", high, x)


@lower(aten.clamp.default)
def clamp_to_numbers(ctx: Lowering, x: Ref, low: Any = None, high: Any = None) -> Ref:
    dtype = compute_dtype(ctx.meta().dtype)
    if (low is None) != (high is None) and not _one_bound_may_be_nan():
        low, high = (None if number != number else number for number in (low, high))

    def body(at: At) -> Value:
        inputs = (None if y is None else ctx.element(y, at, dtype) for y in (x, low, high))
        return clamp(*inputs)  # type: ignore[arg-type]

    return ctx.pointwise(body)


@functools.cache
def _one_bound_may_be_nan() -> bool:
    """Returns whether this torch gives NaN where the only bound is NaN; up to 2.12 it ignores it."""
    return bool(torch.zeros(1).clamp(max=float("nan")).isnan())


@elementwise(2, aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: Value, high: Value) -> Value:
    return clamp(x, None, high)


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
    if ctx.node.meta.get(OF_STORED_VALUES):

        def stored(at: Any) -> Value:
            return make("round_to", ctx.element(x, at, ctx.meta().dtype), attr=x.dtype)

        return ctx.pointwise(stored, label="to")
    return ctx.pointwise(_convert(ctx, x, ctx.meta().dtype), label="to")


@lower(operators("prims").convert_element_type.default)
def convert_element_type(ctx: Lowering, x: Ref, dtype: torch.dtype) -> Ref:
    return ctx.pointwise(_convert(ctx, x, dtype), label="to")


def _scaled_term(name: str) -> Callable[..., Ref]:
    """Lowers addcmul or addcdiv. Kernels of ATen compute x + (value * a) op b on the CPU and
    x + value * (a op b) on GPUs: one of the products may overflow, and the other not."""

    def lowering(ctx: Lowering, x: Ref, a: Ref, b: Ref, value: Any = 1) -> Ref:
        dtype = compute_dtype(ctx.meta().dtype)

        def product_and(term: Value, value: Value, other: Value) -> Value:
            if dtype.is_floating_point:
                return make("fma", value, other, term)
            return make("add", term, make("mul", value, other))

        def body(at: At) -> Value:
            term, left, right = (ctx.element(operand, at, dtype) for operand in (x, a, b))
            if ctx.gpu and value != 1:
                return product_and(term, const(value, dtype), make(name, left, right))
            left = scaled_by(left, value)
            if name == "mul":
                return product_and(term, left, right)
            return make("add", term, make(name, left, right))

        return ctx.pointwise(body)

    return lowering


lower(aten.addcmul.default)(_scaled_term("mul"))
lower(aten.addcdiv.default)(_scaled_term("div"))


@elementwise(3, aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(start: Value, end: Value, weight: Value) -> Value:
    distance, dtype = make("sub", end, start), weight.dtype
    near = make("fma", weight, distance, start)
    far = make("fma", distance, make("sub", weight, const(1, dtype)), end)
    return make("where", make("lt", make("abs", weight), const(0.5, dtype)), near, far)


def _other_if_nan(kind: str) -> Callable[[Value, Value], Value]:
    """Returns fmax or fmin, which prefer a number to NaN."""

    def body(x: Value, y: Value) -> Value:
        best = make(kind, x, y)
        if not x.dtype.is_floating_point:
            return best
        return make("where", make("ne", x, x), y, make("where", make("ne", y, y), x, best))

    return body


elementwise(2, aten.fmax.default)(_other_if_nan("maximum"))
elementwise(2, aten.fmin.default)(_other_if_nan("minimum"))
