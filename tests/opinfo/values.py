"""Arguments of calls: walking through them, copies that keep their layout, the same in double
precision.

In: any nesting of tuples, lists and dicts with tensors in it. Out: another one. What always holds:
a copy has the sizes, strides, offsets and shared storages of the original, and is a leaf that wants
a gradient where that did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WIDER = {
    torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64,
    torch.complex64: torch.complex128, torch.complex32: torch.complex128,
}  # fmt: skip


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nesting, each leaf changed."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuild(item, change) for item in value))
    if type(value) in (tuple, list, torch.Size):
        kind = tuple if type(value) is torch.Size else type(value)
        return kind(rebuild(item, change) for item in value)
    if isinstance(value, tuple):  # torch.return_types
        return type(value)([rebuild(item, change) for item in value])
    if type(value) is dict:
        return {key: rebuild(item, change) for key, item in value.items()}
    return change(value)


def leaves(value: Any) -> list[Any]:
    """What `rebuild` changes, in order."""
    actual: list[Any] = []
    rebuild(value, actual.append)
    return actual


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


class Copier:
    """Copies of tensors; those that share a storage share its copy. Mutable: remembers the
    storages.
    """

    def __init__(self) -> None:
        self.storages: dict[int, tuple[torch.Tensor, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device).set_state(value.get_state())
        if not isinstance(value, torch.Tensor):
            return value
        result = self.tensor(value.detach())
        return result.requires_grad_() if value.requires_grad else result

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        if value.is_conj():
            return self.tensor(value.conj()).conj()
        if value.is_neg():
            return self.tensor(torch._neg_view(value))._neg_view()
        if value.layout is not torch.strided or value.is_quantized:
            return value.clone()
        storage = value.untyped_storage()
        key = storage._cdata
        if key not in self.storages:
            self.storages[key] = (value, storage.clone())
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(
            self.storages[key][1], value.storage_offset(), value.shape, value.stride()
        )


def copied(value: Any) -> Any:
    return rebuild(value, Copier())


def widened(value: Any) -> Any:
    """In double precision: what a result should be."""

    def wider(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return WIDER.get(leaf, leaf)
        if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDER:
            return leaf.detach().to(WIDER[leaf.dtype]).requires_grad_(leaf.requires_grad)
        return leaf

    return rebuild(copied(value), wider)


def _noise(like: torch.Tensor, epsilon: float, generator: torch.Generator) -> torch.Tensor:
    """Factors within one part in 1/epsilon of 1, for complex numbers in every direction."""

    def part() -> torch.Tensor:
        return torch.rand(like.shape, generator=generator, dtype=torch.float64) * 2 - 1

    actual = torch.complex(part(), part()) if like.is_complex() else part()
    return (1 + epsilon * actual).to(like.device, like.dtype)


def nudged(value: Any, seed: int, epsilon: float) -> Any:
    """Each number moved by at most one part in 1/epsilon: how far results move with it is what
    rounding may do.
    """
    generator = torch.Generator().manual_seed(seed)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return (leaf.detach() * _noise(leaf, epsilon, generator)).requires_grad_(
                leaf.requires_grad
            )
        return leaf

    return rebuild(value, move)


class Rounding(TorchDispatchMode):
    """Inside, every number that an operator computes is moved likewise: what the rounding of what
    lies between the inputs and the result may do."""

    def __init__(self, seed: int, epsilon: float) -> None:
        super().__init__()
        self.generator, self.epsilon = torch.Generator().manual_seed(seed), epsilon

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(
            item.alias_info is not None and not item.alias_info.is_write
            for item in func._schema.returns
        ):
            return result  # a view
        for leaf in tensors(result):
            if leaf.dtype in (torch.float64, torch.complex128) and leaf.layout is torch.strided:
                overlaps = any(
                    n > 1 and step == 0 for n, step in zip(leaf.shape, leaf.stride(), strict=True)
                )
                if not overlaps:
                    leaf.detach().mul_(_noise(leaf, self.epsilon, self.generator))
        return result
