"""NumPy's functions in torch's operators where torch._numpy computes other values: NaN, the sign of
zero, overflow, what is accumulated in which dtype.

Each takes the dtype of NumPy's result and the call's arguments, with tensors for arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Version = Callable[..., Any]


def _sign(dtype: torch.dtype, x: Any) -> Any:
    return torch.where(torch.isnan(x), x, torch.sign(x)) if x.is_floating_point() else x.sign()


def _square(dtype: torch.dtype, x: Any) -> Any:
    return x * x


def _remainder(dtype: torch.dtype, x: Any, y: Any) -> Any:
    rest = torch.remainder(x, y)
    return (
        torch.where(rest == 0, torch.copysign(rest, y), rest) if dtype.is_floating_point else rest
    )


def _as(dtype: torch.dtype, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    return torch.tensor(value, dtype=dtype)


def _where(dtype: torch.dtype, condition: Any, x: Any, y: Any) -> Any:
    return torch.where(_as(torch.bool, condition), _as(dtype, x), _as(dtype, y))


def _clip(dtype: torch.dtype, x: Any, low: Any, high: Any) -> Any:
    for bound, choose in ((low, torch.maximum), (high, torch.minimum)):
        x = _as(dtype, x)
        x = x if bound is None else choose(x, _as(dtype, bound))
    return x


def _round(dtype: torch.dtype, x: Any, decimals: int = 0) -> Any:
    if not x.is_floating_point():
        if decimals < 0:
            raise NotImplementedError("integers rounded to tens")
        return x.to(dtype, copy=True)
    if decimals == 0:
        return torch.round(x)
    scale = 10.0 ** abs(decimals)
    return torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale


def _cumsum(dtype: torch.dtype, x: Any, axis: Any = None, dtype_: Any = None) -> Any:
    x = (x.reshape(-1) if axis is None else x).to(dtype)
    dim = 0 if axis is None else axis
    total = torch.cumsum(x, dim, dtype=dtype)
    if not dtype.is_floating_point:
        return total
    # A sum that begins with 0.0 loses the sign of what are only negative zeros so far.
    negative = torch.cumprod(((x == 0) & torch.signbit(x)).to(torch.int8), dim) != 0
    return torch.where(negative, -0.0 * torch.ones_like(total), total)


def _reduced(x: Any, axis: Any) -> tuple[Any, list[int], int]:
    dims = list(range(x.dim())) if axis is None else [axis] if type(axis) is int else list(axis)
    count = 1
    for dim in dims:
        count *= x.shape[dim]
    return x, dims, count


def _sum(dtype: torch.dtype, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    x, dims, _ = _reduced(x.to(dtype), axis)
    return torch.sum(x, dims, keepdim=keepdims, dtype=dtype) if dims else x.clone()


def _mean(dtype: torch.dtype, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    x, dims, _ = _reduced(x.to(dtype), axis)
    return torch.mean(x, dims, keepdim=keepdims) if dims else x.clone()


def _var(
    dtype: torch.dtype, x: Any, axis: Any = None, *, ddof: Any = 0, keepdims: bool = False
) -> Any:
    x, dims, count = _reduced(x.to(dtype), axis)
    if dtype is torch.float16 or count <= ddof or not dims:
        raise NotImplementedError("of half precision, or of too few elements")
    centred = x - torch.mean(x, dims, keepdim=True)
    return torch.sum(centred * centred, dims, keepdim=keepdims) / (count - ddof)


def _std(dtype: torch.dtype, x: Any, *args: Any, **kwargs: Any) -> Any:
    return torch.sqrt(_var(dtype, x, *args, **kwargs))


#: Function of NumPy, or method of its arrays -> its version.
VERSIONS: dict[str, Version] = {
    "sign": _sign, "square": _square, "remainder": _remainder, "where": _where, "clip": _clip,
    "round": _round, "around": _round, "cumsum": _cumsum, "sum": _sum, "mean": _mean, "var": _var,
    "std": _std,
}  # fmt: skip
