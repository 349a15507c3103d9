"""Represents views of a buffer as index maps, without a kernel or a copy.

A `Ref`'s `index` gives, for loop variables over the view's sizes, the logical index into the
buffer. Composing views composes index maps, so any chain of views is one map; `strided()` returns
the layout of a view that is also a plain strided tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inductor_backend.ir.index_expr import (
    Expr,
    Index,
    contiguous_strides,
    reshape,
    substitute,
    variables,
)
from inductor_backend.ir.nodes import Buffer, BufferLayout
from inductor_backend.ir.values import Value, load


@dataclass(frozen=True, slots=True)
class Ref:
    """A view of `buffer` of the given sizes;"""

    buffer: Buffer
    sizes: tuple[Expr, ...]
    #: One expression a buffer dimension.
    index: tuple[Index, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    @staticmethod
    def of(buffer: Buffer) -> Ref:
        return Ref(buffer, buffer.layout.sizes, variables(buffer.layout.sizes))

    @property
    def is_whole(self) -> bool:
        return self.sizes == self.buffer.layout.sizes and self.index == variables(self.sizes)

    def at(self, position: Sequence[Index]) -> Value:
        """Returns the element at a position of the view, as a body value."""
        return load(self.buffer.name, self.place(position), self.dtype)

    def place(self, position: Sequence[Index]) -> tuple[Index, ...]:
        """Returns the buffer's logical index of a position of the view."""
        return tuple(substitute(index, position) for index in self.index)

    def remap(self, sizes: Sequence[Expr], position: Sequence[Index]) -> Ref:
        """Returns the view of new sizes whose element at (v0, v1, ...) is this view's at
        `position`.
        """
        return Ref(self.buffer, tuple(sizes), self.place(position))

    def strided(self) -> BufferLayout | None:
        """Returns the layout as a strided tensor, or None where no strides describe it."""
        flat = self.buffer.layout.flat(self.index)
        if not flat.affine:
            return None
        dense = contiguous_strides(self.sizes)
        strides = tuple(
            dense[k] if isinstance(size, int) and size == 1 else flat.coefficient(k)
            for k, size in enumerate(self.sizes)
        )
        if any(isinstance(stride, int) and stride < 0 for stride in strides):
            return None  # a flip: torch's tensors have no negative strides
        return BufferLayout(self.sizes, strides, flat.const)

    # view operations ----------------------------------------------------------------------------

    def reshape(self, sizes: Sequence[Expr]) -> Ref:
        return self.remap(sizes, reshape(self.sizes, sizes, variables(sizes)))

    def permute(self, order: Sequence[int]) -> Ref:
        sizes = [self.sizes[k] for k in order]
        new = variables(sizes)
        position = [Index()] * len(order)
        for place, k in enumerate(order):
            position[k] = new[place]
        return self.remap(sizes, position)

    def expand(self, sizes: Sequence[Expr]) -> Ref:
        """Broadcast to sizes (as torch: new leading dimensions, size 1 repeated)."""
        new = variables(sizes)
        lead = len(sizes) - len(self.sizes)
        position = [
            Index() if isinstance(size, int) and size == 1 else new[lead + k]
            for k, size in enumerate(self.sizes)
        ]
        return self.remap(sizes, position)

    def slice(self, dim: int, start: Expr, length: Expr, step: int = 1) -> Ref:
        sizes = list(self.sizes)
        sizes[dim] = length
        position = list(variables(sizes))
        position[dim] = position[dim] * step + start
        return self.remap(sizes, position)

    def select(self, dim: int, at: Expr) -> Ref:
        sizes = [*self.sizes[:dim], *self.sizes[dim + 1 :]]
        position = list(variables(sizes))
        position.insert(dim, Index(at))
        return self.remap(sizes, position)

    def unsqueeze(self, dim: int) -> Ref:
        sizes = [*self.sizes[:dim], 1, *self.sizes[dim:]]
        position = list(variables(sizes))
        del position[dim]
        return self.remap(sizes, position)

    def flip(self, dims: Sequence[int]) -> Ref:
        position = list(variables(self.sizes))
        for dim in dims:
            position[dim] = position[dim] * -1 + (self.sizes[dim] - 1)
        return self.remap(self.sizes, position)


def broadcast(position: Sequence[Index], sizes: Sequence[Expr]) -> list[Index]:
    """Returns the position in a tensor of `sizes` that broadcasts to the shape of `position`."""
    lead = len(position) - len(sizes)
    return [
        Index() if isinstance(size, int) and size == 1 else position[lead + k]
        for k, size in enumerate(sizes)
    ]
