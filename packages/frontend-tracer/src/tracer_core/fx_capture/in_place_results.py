"""In-place operators whose result does not fit their tensor, by dtype or shape: eager raises, some
fakes and functional forms do not, and some fakes even resize the tensor.

Nothing is computed where the tensor is floating-point and no operand is larger.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.fx_capture.function_traits import operator_name
from tracer_core.fx_capture.kernel_checks import OnFakes
from tracer_core.ops.calls import RESHAPE_IN_PLACE

#: Name of a Python in-place operator, or of one whose out-of-place form takes other operands ->
#: a function with the dtype and sizes of its result.
_OUT_OF_PLACE: dict[str, Callable[..., Any]] = {
    **{
        form.format(name): getattr(operator, f"__{name}__")
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor",
                     "lshift", "rshift")
        for form in ("i{}", "__i{}__")
    },
    "bernoulli_": lambda value, *operands, **_: torch.broadcast_tensors(value, *operands)[0],
}  # fmt: skip
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
    if not is_exact and not _may_broadcast(value, (*args[1:], *kwargs.values())):
        return None
    name = operator_name(func)
    compute = _OUT_OF_PLACE.get(name) or _method(name)
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
    differ = result.dim() != value.dim() or any(map(_differs, result.shape, value.shape))
    return "its result has other sizes than the tensor" if differ else None


def _may_broadcast(value: torch.Tensor, operands: Sequence[Any]) -> bool:
    """Returns whether an operand has a dimension that the mutated tensor lacks."""
    return any(
        other.dim() > value.dim()
        or any(
            not (type(size) is int and size == 1) and _differs(size, own)
            for size, own in zip(reversed(other.shape), reversed(value.shape), strict=False)
        )
        for other in operands
        if isinstance(other, torch.Tensor) and other is not value
    )


def _differs(size: Any, own: Any) -> bool:
    """Returns whether a size surely differs from one of the mutated tensor. Symbols are larger than 1;
    they are not compared, so that no guard is made."""
    return type(own) is int and (size != own if type(size) is int else own == 1)


def _method(name: str) -> Callable[..., Any] | None:
    """Returns the out-of-place form of an in-place method."""
    if not name.endswith("_") or name.startswith("_") or name in _NOT_IN_PLACE:
        return None
    function: Callable[..., Any] | None = getattr(torch.Tensor, name[:-1], None)
    return function if callable(function) else None
