"""Functionalization: wrappers that turn mutations into new values, and mutation queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Context in which operators on `functional` tensors turn writes into new values; views stay
    views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


@contextlib.contextmanager
def functionalization_off() -> Iterator[None]:
    """Context in which tensors are not wrapped."""
    key = torch._C.DispatchKey.Functionalize
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        yield


@contextlib.contextmanager
def functionalization_again() -> Iterator[None]:
    """Context, inside an operator that functionalization has passed on, in which it works again."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
    excluded = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(
        torch._C._dispatch_tls_local_include_set() | keys, excluded - keys
    ):
        yield


def functional(tensor: torch.Tensor) -> torch.Tensor:
    """Wraps a tensor for functionalization."""
    return torch._to_functional_tensor(tensor)


def is_functional(value: Any) -> bool:
    """Returns whether `value` is such a functional wrapper."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def functional_value(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the current value of a wrapper, after pending writes to its storage."""
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def has_data_mutation(tensor: torch.Tensor) -> bool:
    """Returns whether the storage of a wrapper was mutated."""
    return bool(torch._functionalize_has_data_mutation(tensor))  # type: ignore[attr-defined]


def has_metadata_mutation(tensor: torch.Tensor) -> bool:
    """Returns whether sizes, strides or storage of a wrapper were changed in place."""
    return bool(
        torch._functionalize_has_metadata_mutation(tensor)
        or torch._functionalize_was_storage_changed(tensor)
    )


def replaced(wrapper: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Replaces a wrapper's value by another wrapper's (same sizes and dtype), as functionalization
    does for an in-place operator."""
    torch._functionalize_replace(wrapper, torch._from_functional_tensor(value))
    torch._functionalize_commit_update(wrapper)
    torch._functionalize_sync(wrapper)
    return wrapper
