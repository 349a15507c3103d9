"""Memory for a graph's intermediates: one arena a running call, taken from a pool and given back.

In: a size in bytes and the views that the generated module uses. Out: an `Arena`. What always holds: an arena
belongs to one call from `take` until `give`, so threads, recursion and nested calls never share one; its
address is a multiple of 64; outputs never live in it. A call that raises simply drops its arena.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch

from inductor_backend.runtime.large import LARGE, in_large_pages

#: (byte offset, dtype, sizes, strides, start in elements from the offset)
ViewSpec = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]

#: Bytes: every arena starts at a multiple of this (a cache line and a vector register).
ALIGNMENT = 64


class Arena:
    """address: of its first byte. views: the pool's views on it, in order. Immutable."""

    __slots__ = ("_memory", "address", "views")

    def __init__(self, nbytes: int, views: Sequence[ViewSpec]) -> None:
        memory = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
        if nbytes >= LARGE:
            in_large_pages(memory)
        skip = -memory.data_ptr() % ALIGNMENT
        self._memory = memory[skip : skip + nbytes]
        self.address = memory.data_ptr() + skip
        self.views = tuple(view(self._memory, *spec) for spec in views)


def view(
    memory: torch.Tensor,
    offset: int,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    start: int,
) -> torch.Tensor:
    """A strided view of an arena's bytes (uint8). Raises RuntimeError if it does not lie within them."""
    usable = (memory.numel() - offset) // dtype.itemsize * dtype.itemsize
    flat = memory[offset : offset + usable].view(dtype)
    last = start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 not in sizes and not 0 <= last < flat.numel():
        raise RuntimeError(
            f"view {tuple(sizes)} at byte {offset} ends outside the arena of {memory.numel()} bytes"
        )
    return flat.as_strided(sizes, strides, flat.storage_offset() + start)


class ArenaPool:
    """Free arenas of one compiled graph. Thread-safe: deque's pop and append are atomic."""

    __slots__ = ("_free", "_made", "_making", "nbytes", "views")

    def __init__(self, nbytes: int, views: Sequence[ViewSpec] = ()) -> None:
        self.nbytes = nbytes
        self.views = tuple(views)
        self._free: deque[Arena] = deque(maxlen=8)  # of a burst of threads, eight arenas are kept
        self._making = threading.Lock()
        self._made = 0

    def take(self) -> Arena:
        """A free arena, or a new one; it is the caller's until `give`."""
        try:
            return self._free.pop()
        except IndexError:
            with self._making:
                self._made += 1
            with torch.inference_mode(False), torch.no_grad():
                return Arena(self.nbytes, self.views)

    def give(self, arena: Arena) -> None:
        """Returns an arena. Nothing may read it afterwards."""
        self._free.append(arena)

    @property
    def made(self) -> int:
        """How many arenas were ever made: the greatest number of calls that ran at once, if none raised."""
        return self._made
