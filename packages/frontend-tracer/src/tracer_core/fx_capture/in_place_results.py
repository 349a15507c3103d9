"""In-place operators whose result does not fit their tensor, by dtype or shape: eager raises, some
fakes and functional forms do not, and some fakes even resize the tensor.

Nothing is computed where the tensor is floating-point and no operand is larger.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.fx_capture.function_traits import operator_name
from tracer_core.fx_capture.kernel_checks import OnFakes
from tracer_core.ops.calls import RESHAPE_IN_PLACE

#: Python in-place operator -> its out-of-place form.
_OUT_OF_PLACE: dict[Any, Callable[..., Any]] = {
    getattr(operator, f"i{name}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
}
#: These convert to the tensor's dtype, without type promotion.
_CONVERT = frozenset(
    {"copy_", "fill_", "masked_fill_", "index_fill_", "scatter_", "put_", "index_put_"}
)
#: In-place methods that are not checked.
_NOT_IN_PLACE = _CONVERT | RESHAPE_IN_PLACE


def misfit(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_fakes: OnFakes
) -> str | None:
    """Returns why the result of an in-place operator cannot be written to its tensor, or None."""
    value = args[0] if args else None
    if not isinstance(value, torch.Tensor):
        return None
    is_exact = not (value.dtype.is_floating_point or value.dtype.is_complex)
    if not is_exact and not _may_broadcast(value, args):
        return None
    compute = _OUT_OF_PLACE.get(func) or _method(operator_name(func))
    if compute is None:
        return None
    try:
        with on_fakes(), torch.no_grad():
            result = compute(*args, **kwargs)
    except Exception:
        return None  # the operator raises its own error where it runs
    if not isinstance(result, torch.Tensor):
        return None
    if not torch.can_cast(result.dtype, value.dtype):
        return "its result cannot be cast to the tensor's dtype"
    # Sizes may be symbols: compare only ints, so that no guard is made.
    differ = result.dim() != value.dim() or any(
        type(a) is int and type(b) is int and a != b
        for a, b in zip(result.shape, value.shape, strict=True)
    )
    return "its result has other sizes than the tensor" if differ else None


def _may_broadcast(value: torch.Tensor, args: tuple[Any, ...]) -> bool:
    """Returns whether another operand has a dimension that the mutated tensor lacks."""
    for other in args[1:]:
        if isinstance(other, torch.Tensor) and other is not value:
            if other.dim() > value.dim():
                return True
            sizes = zip(reversed(other.shape), reversed(value.shape), strict=False)
            if any(type(a) is int and type(b) is int and a not in (1, b) for a, b in sizes):
                return True
    return False


def _method(name: str) -> Callable[..., Any] | None:
    """Returns the out-of-place form of an in-place method."""
    if not name.endswith("_") or name.startswith("_") or name in _NOT_IN_PLACE:
        return None
    function: Callable[..., Any] | None = getattr(torch.Tensor, name[:-1], None)
    return function if callable(function) else None
