"""How tensors lie in memory, as far as copies and recordings ask.

In: tensors. Out: buffers of the same layout, copies, and what the results of a run share their
memory with. What always holds: a buffer or copy has sizes and strides of its source; only tensors
whose elements all have a place of their own are copied into.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cudagraphs_backend.torch_private import storage_key


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements may share a place (True where that is not easily told)."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def can_be_copied(tensor: torch.Tensor) -> bool:
    """Whether a buffer of the same layout can stand for the tensor."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not overlaps_itself(tensor)
    )


def buffer_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of a tensor's layout, with values not set."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also where there are gaps or repeated elements."""
    copy = tensor.clone()
    if copy.stride() == tensor.stride():
        return copy
    span = (
        sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        + 1
    )
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride(), 0).data


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a run. nbytes: of its storage (0: no tensor). source: the input whose memory it
    shares, or None. shared: another result shares its memory."""

    nbytes: int = 0
    source: int | None = None
    shared: bool = False


def results_of(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Result, ...]:
    """Facts about each output of a run. Tensors that own no strided storage raise TypeError."""
    owners: dict[int, int] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            owners.setdefault(storage_key(value.untyped_storage()), index)
    keys = [
        storage_key(value.untyped_storage()) if isinstance(value, torch.Tensor) else None
        for value in outputs
    ]
    counts = Counter(keys)
    found = []
    for value, key in zip(outputs, keys, strict=True):
        if key is None:
            found.append(Result())
        else:
            nbytes = value.untyped_storage().nbytes()
            found.append(Result(nbytes, owners.get(key), counts[key] > 1))
    return tuple(found)
