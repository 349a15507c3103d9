"""Memory for a graph's intermediates: one arena a running call, taken from a pool and given back.

In: a size in bytes and the views that the generated module uses. Out: an `Arena`. What always
holds: an arena belongs to one call from `take` until `give`, so threads, recursion and nested calls
never share one; its address is a multiple of 64; outputs never live in it. A call that raises
simply drops its arena.

Small arenas are a graph's own. Large ones lie in blocks that all graphs of the process share,
because graphs run one after the other: a forward, its backward and the parts of a broken program
need the memory of the largest, not of all.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

import torch

from inductor_backend.runtime.huge_pages import LARGE, in_large_pages

#: (byte offset, dtype, sizes, strides, start in elements from the offset)
ViewSpec = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]

#: Bytes: every arena starts at a multiple of this (a cache line and a vector register).
ALIGNMENT = 64


#: Bytes: from this size on, arenas lie in shared blocks.
SHARED = 1 << 20


class Block:
    """nbytes of memory at an aligned address. Immutable."""

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
    """Free blocks of the process. Thread-safe: a block is whoever's removed it from the list, which
    is atomic.
    """

    def __init__(self) -> None:
        self._free: list[Block] = []
        self._pools: weakref.WeakSet[ArenaPool] = weakref.WeakSet()

    def join(self, pool: ArenaPool) -> None:
        """The pool takes from here while it lives; what nobody needs afterwards is freed."""
        self._pools.add(pool)
        weakref.finalize(pool, self._trim).atexit = False

    def take(self, nbytes: int) -> Block:
        """The smallest free block that is large enough; else a new one, for which the largest free
        one is given up.
        """
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
        if len(self._free) < 8:  # of a burst of threads, eight blocks are kept
            self._free.append(block)

    def _removed(self, block: Block) -> bool:
        """Whether it was this thread that took it out."""
        try:
            self._free.remove(block)
        except ValueError:
            return False
        return True

    def _trim(self) -> None:
        needed = max((pool.nbytes for pool in self._pools), default=0)
        for block in [one for one in self._free if one.nbytes > needed]:
            self._removed(block)


BLOCKS = Blocks()


class Arena:
    """A block while a call has it. address: of its first byte. views: the pool's views on it, in
    order. Immutable.
    """

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
    """A strided view of an arena's bytes (uint8). Raises RuntimeError if it does not lie within
    them.
    """
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

    __slots__ = ("__weakref__", "_free", "_made", "_making", "_views", "nbytes", "shared", "views")

    def __init__(self, nbytes: int, views: Sequence[ViewSpec] = ()) -> None:
        self.nbytes = nbytes
        self.views = tuple(views)
        self.shared = nbytes >= SHARED
        self._free: deque[Arena] = deque(maxlen=8)  # of a burst of threads, eight arenas are kept
        #: What it has made on shared blocks, which live no longer for it.
        self._views: weakref.WeakKeyDictionary[Block, tuple[torch.Tensor, ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._making = threading.Lock()
        self._made = 0
        if self.shared:
            BLOCKS.join(self)

    def take(self) -> Arena:
        """A free arena, or a new one; it is the caller's until `give`."""
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
            self._made += 1
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
    def made(self) -> int:
        """How many arenas were ever made: the greatest number of calls that ran at once, if none
        raised; of a shared one: on how many blocks it ever lay."""
        return self._made
