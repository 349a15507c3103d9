"""Functionalisation: wrappers whose writes become new values, and what was written to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Inside, operators on `functional` tensors turn writes into new values; views stay views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


@contextlib.contextmanager
def functionalization_off() -> Iterator[None]:
    """Inside, tensors are not wrapped, whether or not they are outside."""
    key = torch._C.DispatchKey.Functionalize
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        yield


def functional(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` wrapped for functionalisation."""
    return torch._to_functional_tensor(tensor)


def is_functional(value: Any) -> bool:
    """Whether `value` is such a wrapper."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def functional_value(tensor: torch.Tensor) -> torch.Tensor:
    """The current value behind a wrapper, after pending writes to its storage."""
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def has_data_mutation(tensor: torch.Tensor) -> bool:
    """Whether the storage behind a wrapper was written to."""
    return bool(torch._functionalize_has_data_mutation(tensor))  # type: ignore[attr-defined]


def has_metadata_mutation(tensor: torch.Tensor) -> bool:
    """Whether sizes, strides or storage of the wrapped tensor were changed in place."""
    return bool(
        torch._functionalize_has_metadata_mutation(tensor)
        or torch._functionalize_was_storage_changed(tensor)
    )


def replaced(wrapper: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A functional wrapper whose value is that of another one of the same sizes and dtype from now
    on: what functionalization makes of an operator in place."""
    torch._functionalize_replace(wrapper, torch._from_functional_tensor(value))
    torch._functionalize_commit_update(wrapper)
    torch._functionalize_sync(wrapper)
    return wrapper
