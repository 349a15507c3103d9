"""In-place operators whose result would not fit, by its dtype or its sizes: eager raises; some
fakes and functional forms do not, and some fakes even resize what they write to.

In: an in-place operator and its fake arguments. Out: why its result cannot be written back. What
always holds: nothing is written; where no operand is larger than the tensor and that is
floating-point, nothing is computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

#: In-place operators of Python -> the operator that gives their result.
_OUT_OF_PLACE: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
}
#: These convert what they write: they are not computed in a common dtype.
_CONVERT = frozenset(
    {"copy_", "fill_", "masked_fill_", "index_fill_", "scatter_", "put_", "index_put_"}
)
#: These give their tensor other sizes on purpose.
_RESHAPE = frozenset(
    {
        "t_",
        "transpose_",
        "squeeze_",
        "unsqueeze_",
        "swapaxes_",
        "swapdims_",
        "as_strided_",
        "resize_",
        "resize_as_",
    }
)


def misfit(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any) -> str | None:
    """Why what an in-place operator computes cannot be written to its tensor, or None where it
    can.
    """
    value = args[0] if args else None
    if not isinstance(value, torch.Tensor):
        return None
    is_exact = not (value.dtype.is_floating_point or value.dtype.is_complex)
    if not is_exact and not _may_broadcast(value, args):
        return None
    compute = _OUT_OF_PLACE.get(func) or _method(getattr(func, "__name__", ""))
    if compute is None:
        return None
    try:
        with mode, torch.no_grad():
            result = compute(*args, **kwargs)
    except Exception:
        return None  # what the operator itself says is raised where it runs
    if not isinstance(result, torch.Tensor):
        return None
    if not torch.can_cast(result.dtype, value.dtype):
        return "its result cannot be cast to the tensor's dtype"
    # Sizes of a graph's own may be symbols: only numbers are compared, so that nothing is guarded.
    differ = result.dim() != value.dim() or any(
        type(a) is int and type(b) is int and a != b
        for a, b in zip(result.shape, value.shape, strict=True)
    )
    return "its result has other sizes than the tensor" if differ else None


def _may_broadcast(value: torch.Tensor, args: tuple[Any, ...]) -> bool:
    """Whether another operand has a dimension that the tensor written to has not."""
    for other in args[1:]:
        if isinstance(other, torch.Tensor) and other is not value:
            if other.dim() > value.dim():
                return True
            sizes = zip(reversed(other.shape), reversed(value.shape), strict=False)
            if any(type(a) is int and type(b) is int and a not in (1, b) for a, b in sizes):
                return True
    return False


def _method(name: str) -> Callable[..., Any] | None:
    """The method that gives the result of an in-place one."""
    if not name.endswith("_") or name.startswith("_") or name in _CONVERT or name in _RESHAPE:
        return None
    found: Callable[..., Any] | None = getattr(torch.Tensor, name[:-1], None)
    return found if callable(found) else None
