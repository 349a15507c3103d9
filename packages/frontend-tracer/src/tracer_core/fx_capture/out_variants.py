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
    given = kwargs.get("out")
    return [one for one in pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]


def given_back(result: Any, given: list[torch.Tensor]) -> Any:
    """Returns the result with the ``out=`` tensors in place of new ones. Raises ValueError if sizes
    differ."""
    leaves, spec = pytree.tree_flatten(result)
    if (
        not given
        or len(leaves) != len(given)
        or all(a is b for a, b in zip(leaves, given, strict=True))
    ):
        return result
    for made, into in zip(leaves, given, strict=True):
        if not isinstance(made, torch.Tensor) or tuple(made.shape) != tuple(into.shape):
            raise ValueError("its fake does not lie in the memory of out=")
    return pytree.tree_unflatten(given, spec)
