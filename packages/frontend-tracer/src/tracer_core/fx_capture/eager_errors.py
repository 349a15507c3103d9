"""Errors of operators that their arguments' sizes and dtypes decide, in eager's own words.

Where an operator fails on fakes, and the program handles exceptions, it runs on two sets of values of
the same sizes, strides and dtypes. If both raise the same, so does every call that the guards accept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.limits import MAX_EAGER_ERROR_ELEMENTS
from tracer_core.torch_private.needed import dispatch_modes, pytree

_ERRORS = (RuntimeError, IndexError, ValueError)


def eager_error(func: Callable[..., Any], args: Any, kwargs: Any) -> Exception | None:
    """Returns the exception that an operator of torch raises for all tensors like these fakes, or
    None."""
    module = getattr(getattr(func, "__objclass__", func), "__module__", None) or ""
    if module.partition(".")[0] not in ("torch", "_operator", "builtins"):
        return None
    leaves = pytree.arg_tree_leaves(*args, **kwargs)
    if torch_private.transforms_active() or dispatch_modes() or torch_private.has_symbols(leaves):
        return None
    if not all(map(_is_dense, leaves)):
        return None
    result = [_raised(func, args, kwargs, value) for value in (0, 1)]
    if None in result or type(result[0]) not in _ERRORS:
        return None
    alike = type(result[0]) is type(result[1]) and str(result[0]) == str(result[1])
    return result[1] if alike else None


def _is_dense(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return type(value) in (int, float, bool, str, type(None), torch.dtype, torch.device)
    if (
        value.layout is not torch.strided
        or value.device.type != "cpu"
        or value.requires_grad
        or torch_private.has_symbols([*value.shape, *value.stride()])
    ):
        return False
    size = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))
    if size >= MAX_EAGER_ERROR_ELEMENTS:
        crossed("MAX_EAGER_ERROR_ELEMENTS", reached=size)
    return size < MAX_EAGER_ERROR_ELEMENTS


def _raised(func: Callable[..., Any], args: Any, kwargs: Any, value: int) -> Exception | None:
    """Returns what an operator raises on tensors that hold one number."""
    result: dict[int, torch.Tensor] = {}

    def like(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if id(item) not in result:
            new = torch.empty_strided(item.shape, item.stride(), dtype=item.dtype)
            result[id(item)] = new.fill_(value)
        return result[id(item)]

    before = torch.get_rng_state()
    try:
        with torch_private.without_torch_functions(), torch.no_grad():
            inputs: Any = pytree.tree_map(like, (args, kwargs))
            func(*inputs[0], **inputs[1])
    except Exception as error:
        return error.with_traceback(None)
    finally:
        torch.set_rng_state(before)
    return None
