"""Memory of intermediates: one arena per running call, pooled.

In: a size in bytes and the views that operators need. Out: `ArenaPool.take()` and `give()`. What always
holds: an arena belongs to one running call (two threads, recursion and two forwards at once have one
each); its address is a multiple of 64; a call that raises simply never gives its arena back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

ViewSpec = tuple[int, torch.dtype, Sequence[int], Sequence[int], int]


class Arena:
    """memory: the bytes. address: of the first. views: strided tensors over them, in the order asked."""

    __slots__ = ("address", "memory", "views")

    def __init__(self, nbytes: int, views: Sequence[ViewSpec]) -> None:
        raw = torch.empty(nbytes + 64, dtype=torch.uint8)
        start = -raw.data_ptr() % 64
        self.memory = raw[start : start + nbytes]
        self.address = self.memory.data_ptr()
        self.views = tuple(self._view(raw, start, *view) for view in views)

    @staticmethod
    def _view(
        raw: torch.Tensor, base: int, offset: int, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int],
        start: int,
    ) -> torch.Tensor:
        usable = (raw.numel() - base - offset) // dtype.itemsize * dtype.itemsize
        typed = raw[base + offset : base + offset + usable].view(dtype)
        return typed.as_strided(sizes, strides, typed.storage_offset() + start)


class ArenaPool:
    """Arenas of one compiled graph that no call uses now. deque's append and pop are atomic."""

    __slots__ = ("_free", "_nbytes", "_views")

    def __init__(self, nbytes: int, views: Sequence[ViewSpec]) -> None:
        self._nbytes, self._views = nbytes, views
        self._free: deque[Arena] = deque()

    def take(self) -> Arena:
        try:
            return self._free.pop()
        except IndexError:
            return Arena(self._nbytes, self._views)

    def give(self, arena: Arena) -> None:
        self._free.append(arena)
