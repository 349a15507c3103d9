"""Operators that read objects of C++ (ScriptObjects, such as packed weights), on fakes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

#: Linear layers over packed weights, which fakes of any sizes can run.
_LINEAR = frozenset(
    ["linear_dynamic", "linear_relu_dynamic", "linear_dynamic_fp16", "linear_relu_dynamic_fp16"]
)
_CLASSES = "__torch__.torch.classes"


@functools.lru_cache(maxsize=4096)
def takes_objects(func: Any) -> bool:
    """Returns whether an operator has an argument that is an object of C++."""
    return isinstance(func, torch._ops.OpOverload) and any(
        _CLASSES in str(one.type) for one in func._schema.arguments
    )


@contextlib.contextmanager
def without_cache(mode: Any) -> Iterator[None]:
    """Keeps a FakeTensorMode from using its cache, whose keys would compare the objects."""
    before, mode.cache_enabled = mode.cache_enabled, False
    try:
        yield
    finally:
        mode.cache_enabled = before


def fake_linear(func: Any, args: Any) -> Any:
    """Returns the result of a linear layer over packed weights on a fake; None for other calls,
    which run the operator's kernel on zeros."""
    if func.namespace != "quantized" or func._schema.name.partition("::")[2] not in _LINEAR:
        return None
    if len(args) < 2 or args[0].dtype is not torch.float32 or args[0].dim() < 2:
        return None
    with torch._C._DisableTorchDispatch():
        wide, narrow = args[1].unpack()[0].shape
    value = args[0]
    return value.new_empty((*value.shape[:-1], wide)) if value.shape[-1] == narrow else None
