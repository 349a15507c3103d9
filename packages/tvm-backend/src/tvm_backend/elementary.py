"""Elementary functions of float32 as polynomials, so that loops over them vectorise.

TVM's own are scalar calls of the C library. exp, erf and tanh are within 3 units in the last
place; the others are formulas of these. NaN stays NaN, and infinities give what PyTorch gives.
The coefficients minimise the largest error, fitted in float64 (Lawson's weights on Chebyshev
points)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

#: (exp(r) - 1 - r) / r**2 for |r| up to log(2) / 2.
EXP = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166838899254799,
    0.0083687175065279,
    0.0013814596459269524,
)

#: exp is 0 below the first, infinite above the second.
MIN_EXPONENT, MAX_EXPONENT = -104.0, 89.0

#: log(2) in two parts: products of the first and integers below 2**9 are exact.
LOG2_HIGH, LOG2_LOW = 0.693359375, -2.1219444005469057e-4

#: erf(x) / x by x**2, for |x| up to the bound; log(erfc(x)) by x from there to 4, beyond which erf
#: is 1.
ERF_BOUND = 0.92
ERF_SMALL = (
    1.128379225730896, -0.37612631916999817, 0.11283663660287857, -0.026857705786824226,
    0.005196951795369387, -0.0008097702520899475, 8.185090700862929e-05,
)  # fmt: skip
ERF_LARGE = (
    0.0001692051737336442, -1.1294883489608765, -0.6334008574485779, -0.10822038352489471,
    0.025080617517232895, -0.004156255163252354, 0.00043139359331689775, -2.0828621927648783e-05,
)  # fmt: skip

#: (tanh(x) / x - 1) / x**2 by x**2, for |x| up to the bound.
TANH_BOUND = 0.58
TANH_SMALL = (
    -0.33333298563957214,
    0.13331924378871918,
    -0.053783826529979706,
    0.02079596370458603,
    -0.005895150359719992,
)


def exp(x: Any) -> Any:
    """Returns e**x."""
    from tvm import tirx

    def reduced(x: Any) -> Any:
        # For NaN, `within` is NaN and `number` is not, so that `whole` can be cast to int32.
        within = _choose(x < MIN_EXPONENT, MIN_EXPONENT, _choose(x > MAX_EXPONENT, MAX_EXPONENT, x))
        number = _choose(x < MIN_EXPONENT, MIN_EXPONENT, _choose(x < MAX_EXPONENT, x, MAX_EXPONENT))
        full = tirx.floor(number * _number(1 / math.log(2)) + _number(0.5))
        return _let(
            full,
            lambda n: _let(
                within - n * _number(LOG2_HIGH) - n * _number(LOG2_LOW), lambda r: power(n, r)
            ),
        )

    def power(n: Any, r: Any) -> Any:
        fraction = r * r * _polynomial(EXP, r) + r + _number(1)
        count = n.astype("int32")
        # In two steps: float32 cannot represent 2**128 and 2**-150.
        return _let(
            count, lambda n: _let(n >> 1, lambda half: fraction * _two_to(half) * _two_to(n - half))
        )

    return _let(x, reduced)


def erf(x: Any) -> Any:
    """Returns the error function of x."""
    from tvm import tirx

    def of(x: Any) -> Any:
        size = tirx.abs(x)
        small = _let(x * x, lambda square: x * _polynomial(ERF_SMALL, square))
        within = _choose(size > 4.0, 4.0, size)
        large = _let(within, lambda size: _number(1) - exp(_polynomial(ERF_LARGE, size)))
        return _choose(size < ERF_BOUND, small, _with_sign(large, x))

    return _let(x, of)


def tanh(x: Any) -> Any:
    """Returns the hyperbolic tangent of x."""
    from tvm import tirx

    def of(x: Any) -> Any:
        size = tirx.abs(x)
        small = _let(
            x * x, lambda square: x * (square * _polynomial(TANH_SMALL, square) + _number(1))
        )
        large = _number(1) - _number(2) / (exp(size + size) + _number(1))
        return _choose(size < TANH_BOUND, small, _with_sign(large, x))

    return _let(x, of)


def sigmoid(x: Any) -> Any:
    """Returns 1 / (1 + e**-x)."""
    return _number(1) / (_number(1) + exp(_number(0) - x))


def silu(x: Any) -> Any:
    """Returns x times its sigmoid."""
    return _let(x, lambda x: x / (_number(1) + exp(_number(0) - x)))


def gelu(x: Any) -> Any:
    """Returns x times the normal distribution function of x."""
    return _let(x, lambda x: x * _number(0.5) * (_number(1) + erf(x * _number(math.sqrt(0.5)))))


def gelu_tanh(x: Any) -> Any:
    """Returns the tanh approximation of gelu."""
    scale = math.sqrt(2 / math.pi)
    inner: Callable[[Any], Any] = lambda x: _number(scale) * (x + _number(0.044715) * x * x * x)
    return _let(x, lambda x: _number(0.5) * x * (_number(1) + tanh(inner(x))))


def _polynomial(coefficients: Sequence[float], x: Any) -> Any:
    value = _number(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + _number(coefficient)
    return value


def _two_to(exponent: Any) -> Any:
    from tvm import tirx

    return tirx.reinterpret("float32", (exponent + 127) << 23)


def _with_sign(size: Any, x: Any) -> Any:
    return _let(size, lambda size: _choose(x < 0.0, _number(0) - size, size))


def _choose(condition: Any, value: Any, other: Any) -> Any:
    """Selects one of two values; both are computed."""
    from tvm import tirx

    inputs = [_number(item) if isinstance(item, float) else item for item in (value, other)]
    return tirx.Select(condition, *inputs)


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    from tvm import tirx

    name = tirx.Var("v", str(value.ty.dtype) if hasattr(value, "ty") else value.dtype)
    return tirx.Let(name, value, body(name))


def _number(value: float) -> Any:
    from tvm import tirx

    return tirx.const(value, "float32")
