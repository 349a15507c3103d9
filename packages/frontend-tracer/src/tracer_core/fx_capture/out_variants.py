"""What a call with ``out=`` wrote to and gives back, whatever its fake did.

In: the fake memory that was given, the fake result. Out: the tensors that count as written to; the
result, which is that memory. What always holds: every tensor of ``out=`` counts as written, though
operators that torch composes of others write to it through aliases that count on their own
(``torch.kron``), or on fakes do not write to it at all.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.torch_private.needed import pytree


def memory(kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of ``out=``."""
    given = kwargs.get("out")
    return [one for one in pytree.tree_leaves(given) if isinstance(one, torch.Tensor)]


def given_back(result: Any, given: list[torch.Tensor]) -> Any:
    """The result, with the given memory in place of tensors made beside it. Raises ValueError for
    other sizes.
    """
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
