"""Checks of Python numbers that real kernels make and fakes do not: a call that may fail them runs
eagerly.

Numbers may be symbolic: a check that the number of the captured call passes becomes a guard, so that a
later number which fails it is not given to the same graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_SYMBOLS = (torch.SymInt, torch.SymFloat)
_NUMBERS = (int, float, *_SYMBOLS)

#: Operators whose kernels convert a Python number to the dtype of a tensor, and raise where it does
#: not fit; others compute in a wider type first.
_CONVERTING = frozenset({
    "_unsafe_masked_index", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "baddbmm", "celu", "clamp",
    "clamp_max", "clamp_min", "clip", "constant_pad_nd", "elu", "fill", "full_like",
    "hardshrink", "hardtanh", "index_fill", "leaky_relu", "lerp", "masked_fill", "new_full",
    "pad", "pow", "__pow__", "__ipow__", "ipow", "rrelu", "rsub", "scatter", "softplus",
    "softshrink", "sub", "subtract", "_threshold", "threshold", "where",
})  # fmt: skip

#: Those of them, and others, whose result has the dtype of their first operand, so that an
#: integer has to be one.
_FILLING = frozenset({
    "__setitem__", "constant_pad_nd", "fill", "fill_", "fill_diagonal_", "full_like",
    "index_fill", "index_fill_", "masked_fill", "masked_fill_", "new_full", "pad", "scatter",
    "scatter_", "setitem",
})  # fmt: skip

#: Dtypes that hold every symbolic integer, and every number.
_WIDE_FOR_INTS = frozenset(
    {torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128}
)
_WIDE = frozenset({torch.float64, torch.complex128})


def _fits(number: Any, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a number."""
    inexact = dtype.is_floating_point or dtype.is_complex
    if isinstance(number, torch.SymInt) and dtype in _WIDE_FOR_INTS:
        return True
    if isinstance(number, torch.SymFloat) and dtype in _WIDE:
        return True
    info: Any = torch.finfo(dtype) if inexact else torch.iinfo(dtype)
    if bool(number >= info.min) and bool(number <= info.max):
        return True
    return inexact and _is_infinite(number)


def _is_infinite(number: Any) -> bool:
    if not isinstance(number, _SYMBOLS):
        return not math.isfinite(number)
    is_float = isinstance(number, torch.SymFloat)
    return is_float and (bool(number == math.inf) or bool(number == -math.inf))


def _unfit_filling(dtype: torch.dtype, numbers: Sequence[Any]) -> str | None:
    """Rejects infinities and NaN where integers are filled in."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return None
    unfit = [number for number in numbers if type(number) is float and not math.isfinite(number)]
    return f"{unfit[0]} does not fit {dtype}" if unfit else None


def _unfit_number(dtypes: Sequence[torch.dtype], numbers: Sequence[Any]) -> str | None:
    """Rejects a number that a tensor's dtype cannot hold."""
    for number in numbers:
        if isinstance(number, float) and not math.isfinite(number):
            continue
        for dtype in dtypes:
            if dtype is not torch.bool and not _fits(number, dtype):
                return f"{number} does not fit {dtype}"
    return None


def _numbers(values: Sequence[Any]) -> list[Any]:
    """Returns those that are numbers, but for those that depend on data, of which nothing is known."""
    numbers = (value for value in values if isinstance(value, _NUMBERS) and type(value) is not bool)
    return [number for number in numbers if not isinstance(number, _SYMBOLS) or _is_known(number)]


def _is_known(symbol: Any) -> bool:
    if torch_private.is_nested_int(symbol):
        return False
    return symbol.node.hint is not None


def _argument(arguments: _Arguments, place: int, name: str, default: Any = None) -> Any:
    """Returns an argument given by place or name; the default too where it is no number, or one
    that depends on data."""
    args, kwargs = arguments
    value = args[place] if len(args) > place else kwargs.get(name, default)
    return value if _numbers([value]) else default


def _full(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    dtype = kwargs.get("dtype")
    numbers = _numbers(args[1:2] or [kwargs.get("fill_value")])
    if dtype is None:
        return None
    return _unfit_number([dtype], numbers) or _unfit_filling(dtype, numbers)


def _power(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    base, exponent = args[0], _argument((args, kwargs), 1, "exponent", 0)
    is_whole = isinstance(base, torch.Tensor) and not base.dtype.is_floating_point
    if is_whole and isinstance(exponent, (int, torch.SymInt)) and bool(exponent < 0):
        return None if base.is_complex() else "integers have no negative powers: eager raises"
    return None


def _average(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    divisor = _argument((args, kwargs), 6, "divisor_override", 1)
    return "a divisor of zero" if bool(divisor == 0) else None


def _strided(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The places of ``x.as_strided(size, stride, storage_offset)`` must lie in the storage of x."""
    named = {
        **dict(zip(("input", "size", "stride", "storage_offset"), args, strict=False)),
        **kwargs,
    }
    offset = named.get("storage_offset")
    begin = args[0].storage_offset() if offset is None else offset
    sizes, strides = (tuple(named.get(key) or ()) for key in ("size", "stride"))
    numbers = (begin, *sizes, *strides, n_bytes := args[0].untyped_storage().nbytes())
    known = all(type(number) is int for number in numbers)  # a storage's size has no guard
    if not known or len(sizes) != len(strides) or any(bool(size == 0) for size in sizes):
        return None
    last = begin + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    fits = bool((last + 1) * args[0].element_size() <= n_bytes)
    return None if fits else "it ends after its storage"


def _smooth(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """``torch._C._nn.smooth_l1_loss(x, target, reduction, beta)``, and the function around it."""
    beta = _argument((args, kwargs), 5 if len(args) > 4 else 3, "beta", 1)
    return "beta is below 0" if bool(beta < 0) else None


def _slope(place: int, name: str) -> Callable[..., str | None]:
    """Makes the check of an activation in place: its backward computes the operand from the result,
    which a negative slope does not allow."""

    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        trained = torch.is_grad_enabled() and args[0].requires_grad
        negative = trained and bool(_argument((args, kwargs), place, name, 1) < 0)
        return f"its gradient in place needs a {name} of at least 0" if negative else None

    return check


def _probability(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    chance = _argument((args, kwargs), 1, "p", 0.5)
    return None if bool(chance >= 0) and bool(chance <= 1) else "p is not from 0 to 1"


def _dimension(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    dim, rank = _argument((args, kwargs), 1, "dim", 0), max(args[0].dim(), 1)
    inside = bool(dim >= -rank) and bool(dim < rank)
    return None if inside else "it has no such dimension"


_CHECKS: dict[str, Callable[..., str | None]] = {
    "full": _full,
    **dict.fromkeys(("pow", "pow_", "__pow__", "__ipow__", "ipow"), _power),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), _average),
    **dict.fromkeys(("as_strided", "as_strided_", "as_strided_copy"), _strided),
    "smooth_l1_loss": _smooth,
    "leaky_relu_": _slope(1, "negative_slope"),
    **dict.fromkeys(("elu_", "celu_"), _slope(1, "alpha")),
    **dict.fromkeys(("bernoulli", "bernoulli_"), _probability),
    **dict.fromkeys(("softmax", "_softmax", "special_softmax", "softmin"), _dimension),
}


def refused_number(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Returns why a kernel may refuse a number among an operator's arguments, or None. name: of the
    operator."""
    values = (*args, *kwargs.values())
    if name in _CONVERTING or name.removesuffix("_") in _CONVERTING:
        numbers = _numbers(values)
        dtypes = (
            [value.dtype for value in values if isinstance(value, torch.Tensor)] if numbers else []
        )
        unfit = _unfit_number(dtypes, numbers)
        if unfit is not None:
            return unfit
    if name in _FILLING and args and isinstance(args[0], torch.Tensor):
        unfit = _unfit_filling(kwargs.get("dtype") or args[0].dtype, values[1:])
        if unfit is not None:
            return unfit
    check = _CHECKS.get(name)
    takes = check is not None and args and (isinstance(args[0], torch.Tensor) or check is _full)
    return check(args, kwargs) if check is not None and takes else None
