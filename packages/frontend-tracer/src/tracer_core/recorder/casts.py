"""In-place operators on integers whose result would not fit: eager raises, fakes and functional forms do not.

In: an in-place operator and its fake arguments. Out: whether its result can be written back. What always holds:
floating-point and complex tensors are not looked at; nothing is written.
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
_CONVERT = frozenset({"copy_", "fill_", "masked_fill_", "index_fill_", "scatter_", "put_", "index_put_"})


def result_fits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any) -> bool:
    """Whether what an in-place operator computes can be cast to the dtype of the integers that it writes to."""
    value = args[0] if args else None
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.is_complex:
        return True
    compute = _OUT_OF_PLACE.get(func) or _method(getattr(func, "__name__", ""))
    if compute is None:
        return True
    try:
        with mode, torch.no_grad():
            result = compute(*args, **kwargs)
    except Exception:
        return True  # what the operator itself says is raised where it runs
    return not isinstance(result, torch.Tensor) or torch.can_cast(result.dtype, value.dtype)


def _method(name: str) -> Callable[..., Any] | None:
    """The method that gives the result of an in-place one."""
    if not name.endswith("_") or name.startswith("_") or name in _CONVERT:
        return None
    found: Callable[..., Any] | None = getattr(torch.Tensor, name[:-1], None)
    return found if callable(found) else None
