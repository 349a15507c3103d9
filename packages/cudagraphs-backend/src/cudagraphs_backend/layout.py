"""Memory layout of tensors: buffers and copies with equal strides, and which results alias inputs.

Only tensors whose elements do not overlap are copied into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cudagraphs_backend.torch_private import storage_key


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether two elements may share an address (True where that is not easily told)."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def can_be_copied(tensor: torch.Tensor) -> bool:
    """Returns whether a buffer of the same layout can take the tensor's place."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not overlaps_itself(tensor)
    )


def buffer_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns uninitialised memory of a tensor's layout."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the same strides, also where the layout has gaps or repeats elements."""
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
    """One result of a run."""

    #: The nbytes of its storage (0: no tensor).
    nbytes: int = 0
    #: Position of the input whose storage it shares, or None.
    source: int | None = None
    #: Another result shares its storage.
    shared: bool = False


def results_of(outputs: Sequence[Any], inputs: Sequence[Any]) -> tuple[Result, ...]:
    """Returns the aliasing facts of each output of a run."""
    owners: dict[int, int] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            owners.setdefault(storage_key(value.untyped_storage()), index)
    keys = [
        storage_key(value.untyped_storage()) if isinstance(value, torch.Tensor) else None
        for value in outputs
    ]
    counts = Counter(keys)
    result = []
    for value, key in zip(outputs, keys, strict=True):
        if key is None:
            result.append(Result())
        else:
            nbytes = value.untyped_storage().nbytes()
            result.append(Result(nbytes, owners.get(key), counts[key] > 1))
    return tuple(result)
