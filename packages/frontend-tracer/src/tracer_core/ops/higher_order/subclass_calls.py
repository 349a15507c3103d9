"""Call targets that make wrapper subclasses of tensors, and read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.torch_private.needed import pytree


def inner_tensor(value: Any, name: str) -> torch.Tensor:
    """Returns an inner tensor of a wrapper. Target of a graph node."""
    inner: torch.Tensor = getattr(value, name)
    return inner


@dataclass(eq=False)
class WrapCall:
    """Makes a wrapper that the program made of its inner tensors. names: of the attributes that
    hold these; context: of ``__tensor_flatten__``."""

    kind: Any
    names: tuple[str, ...]
    context: Any = field(repr=False)
    requires_grad: bool
    __name__ = "wrap"

    def __call__(self, size: Any, stride: Any, *inner: torch.Tensor) -> Any:
        parts = dict(zip(self.names, inner, strict=True))
        result = torch_private.unflattened(self.kind, parts, self.context, size, stride)
        return torch_private.leaf(result, self.requires_grad)


@dataclass(eq=False)
class DTensorCall:
    """Calls a function that makes or takes DTensors. constants: its arguments in the order of
    their structure, but the tensors, which are at the places `where`."""

    function: Any
    constants: tuple[Any, ...] = field(repr=False)
    where: tuple[int, ...] = field(repr=False)
    structure: Any = field(repr=False)

    @property
    def __name__(self) -> str:
        return str(self.function.__name__)

    def __call__(self, *tensors: Any) -> Any:
        leaves = [*self.constants]
        for place, tensor in zip(self.where, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)
