"""torch._numpy: NumPy's functions written with torch's operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def _library() -> Any:
    """torch._numpy, whose import takes a while: only programs that compute on arrays need it."""
    import torch._numpy  # heavy: hundreds of decorated functions

    return torch._numpy


def function(path: str) -> Callable[..., Any] | None:
    """Returns torch's version of NumPy's function of this name (``sum``, ``linalg.norm``)."""
    attribute = _library()
    for part in path.split("."):
        attribute = getattr(attribute, part, None)
    return attribute  # type: ignore[no-any-return]


def method(name: str) -> Callable[..., Any] | None:
    """Returns torch's version of the method of ndarray of this name."""
    return getattr(_library().ndarray, name, None)


def array(tensor: torch.Tensor) -> Any:
    """Returns the tensor as these functions take it."""
    return _library().ndarray(tensor)


def dtype(name: str) -> Any:
    """Returns the dtype of this name as these functions take it."""
    return _library().dtype(name)


def tensors_in(result: Any) -> Any:
    """Replaces the arrays in a result of these functions by their tensors."""
    if isinstance(result, _library().ndarray):
        return result.tensor
    if isinstance(result, (list, tuple)):
        return type(result)([tensors_in(item) for item in result])
    return result
