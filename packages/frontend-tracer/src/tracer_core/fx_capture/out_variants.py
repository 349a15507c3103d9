"""Handles ``out=`` arguments: the tensors that count as mutated, and the result of the call.

Every ``out=`` tensor counts as mutated: composite operators (``torch.kron``) write through aliases
with their own version counters, and some fakes do not write at all.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.torch_private.needed import pytree


def memory(kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors of ``out=``."""
    value = kwargs.get("out")
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def given_back(result: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns the result with the ``out=`` tensors in place of new ones. Raises ValueError if sizes
    differ."""
    leaves, spec = pytree.tree_flatten(result)
    if (
        not tensors
        or len(leaves) != len(tensors)
        or all(a is b for a, b in zip(leaves, tensors, strict=True))
    ):
        return result
    for leaf, into in zip(leaves, tensors, strict=True):
        if not isinstance(leaf, torch.Tensor) or tuple(leaf.shape) != tuple(into.shape):
            raise ValueError("its fake does not lie in the memory of out=")
    return pytree.tree_unflatten(tensors, spec)
