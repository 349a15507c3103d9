"""Arenas: one allocation per running call for a graph's intermediates, taken from a pool and
returned.

An arena belongs to one call from `take` until `give`, so threads, recursion and nested calls never
share one. Its address is a multiple of 64; outputs never live in it. A call that raises drops its
arena.

Small arenas are a graph's own. Large ones lie in blocks that all graphs of the process share,
because graphs run one after the other: a forward, its backward and the graphs between graph breaks
need the memory of the largest, not of all.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

import torch

from inductor_backend.limits import MAX_FREE_ARENAS
from inductor_backend.runtime.huge_pages import LARGE, in_large_pages

#: (byte offset, dtype, sizes, strides, start in elements from the offset)
ViewSpec = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]

#: Bytes: every arena starts at a multiple of this (a cache line and a vector register).
ALIGNMENT = 64


#: Bytes: from this size on, arenas lie in shared blocks.
SHARED = 1 << 20


class Block:
    """nbytes of memory at an aligned address."""

    __slots__ = ("__weakref__", "address", "memory", "nbytes")

    def __init__(self, nbytes: int) -> None:
        with torch.inference_mode(False), torch.no_grad():
            memory = torch.empty(nbytes + ALIGNMENT, dtype=torch.uint8)
            if nbytes >= LARGE:
                in_large_pages(memory)
            skip = -memory.data_ptr() % ALIGNMENT
            self.memory = memory[skip : skip + nbytes]
        self.address = memory.data_ptr() + skip
        self.nbytes = nbytes


class Blocks:
    """Free blocks of the process. Thread-safe: a block belongs to the thread that removed it from
    the list, which is atomic."""

    def __init__(self) -> None:
        self._free: list[Block] = []
        self._pools: weakref.WeakSet[ArenaPool] = weakref.WeakSet()

    def join(self, pool: ArenaPool) -> None:
        """Lets the pool take blocks from here while it lives; afterwards, unneeded memory is freed."""
        self._pools.add(pool)
        weakref.finalize(pool, self._trim).atexit = False

    def take(self, nbytes: int) -> Block:
        """Returns the smallest free block that is large enough, else a new one, for which the
        largest free block is freed."""
        return self._fitting(nbytes) or Block(nbytes)

    def _fitting(self, nbytes: int) -> Block | None:
        free = sorted(self._free, key=lambda block: block.nbytes)
        for block in free:
            if block.nbytes >= nbytes and self._removed(block):
                return block
        if free:
            self._removed(free[-1])
        return None

    def give(self, block: Block) -> None:
        if len(self._free) < MAX_FREE_ARENAS:  # bounds what a burst of threads leaves behind
            self._free.append(block)

    def _removed(self, block: Block) -> bool:
        """Returns whether this thread removed the block."""
        try:
            self._free.remove(block)
        except ValueError:
            return False
        return True

    def _trim(self) -> None:
        needed = max((pool.nbytes for pool in self._pools), default=0)
        for block in [free for free in self._free if free.nbytes > needed]:
            self._removed(block)


BLOCKS = Blocks()


class Arena:
    """A block during one call. address: of its first byte. views: the pool's views on it, in order."""

    __slots__ = ("address", "block", "views")

    def __init__(self, block: Block, views: tuple[torch.Tensor, ...]) -> None:
        self.block, self.address, self.views = block, block.address, views


def view(
    memory: torch.Tensor,
    offset: int,
    dtype: torch.dtype,
    sizes: Sequence[int],
    strides: Sequence[int],
    start: int,
) -> torch.Tensor:
    """Returns a strided view of an arena's bytes (uint8). Raises RuntimeError if it exceeds them."""
    usable = (memory.numel() - offset) // dtype.itemsize * dtype.itemsize
    flat = memory[offset : offset + usable].view(dtype)
    last = start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if 0 not in sizes and not 0 <= last < flat.numel():
        raise RuntimeError(
            f"view {tuple(sizes)} at byte {offset} ends outside the arena of {memory.numel()} bytes"
        )
    return flat.as_strided(sizes, strides, flat.storage_offset() + start)


class ArenaPool:
    """Arenas of one compiled graph. Thread-safe: deque's pop and append are atomic."""

    __slots__ = ("__weakref__", "_count", "_free", "_making", "_views", "nbytes", "shared", "views")

    def __init__(self, nbytes: int, views: Sequence[ViewSpec] = ()) -> None:
        self.nbytes = nbytes
        self.views = tuple(views)
        self.shared = nbytes >= SHARED
        self._free: deque[Arena] = deque(maxlen=8)  # bounds what a burst of threads leaves
        #: Views on shared blocks, which they do not keep alive.
        self._views: weakref.WeakKeyDictionary[Block, tuple[torch.Tensor, ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._making = threading.Lock()
        self._count = 0
        if self.shared:
            BLOCKS.join(self)

    def take(self) -> Arena:
        """Returns a free arena, or a new one; the caller owns it until `give`."""
        if self.shared:
            block = BLOCKS.take(self.nbytes)
            views = self._views.get(block)
            return Arena(block, views) if views is not None else self._on(block)
        try:
            return self._free.pop()
        except IndexError:
            return self._on(Block(self.nbytes))

    def _on(self, block: Block) -> Arena:
        with self._making:
            self._count += 1
        with torch.inference_mode(False), torch.no_grad():
            views = tuple(view(block.memory, *spec) for spec in self.views)
        if self.shared:
            self._views[block] = views
        return Arena(block, views)

    def give(self, arena: Arena) -> None:
        """Returns an arena. Nothing may read it afterwards."""
        if self.shared:
            BLOCKS.give(arena.block)
        else:
            self._free.append(arena)

    @property
    def allocated(self) -> int:
        """Returns how many arenas were ever made: the greatest number of concurrent calls, if none
        raised. For shared blocks: the number of blocks ever used."""
        return self._count
