"""Reads many words of memory at once without a C compiler.

`GatherCheck` gives the same answers as `NativeCheck`. The address space is viewed as one int64
tensor, which reads nothing until it is indexed, so `index_select` with the addresses as indices
gathers all words in one call.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from tracer_core.guards.object_layout import word
from tracer_core.guards.watched_words import Words

_START, _END = 1 << 16, 1 << 47  # user space; the first pages are never mapped


@functools.cache
def _memory() -> torch.Tensor:
    with torch.inference_mode(False):
        space = (ctypes.c_int64 * ((_END - _START) // 8)).from_address(_START)
        return torch.frombuffer(space, dtype=torch.int64)


class GatherCheck:
    """Compares words of memory with their recorded values, by torch's gather."""

    def __init__(self, words: Words) -> None:
        memory = _memory()
        self._addresses = words.depths[0]
        self._depths: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.inference_mode(False):
            for addresses in words.depths:
                if addresses:
                    assert not any(address % 8 for address in addresses)
                    index = torch.tensor([(address - _START) >> 3 for address in addresses])
                    self._depths.append((index, torch.index_select(memory, 0, index)))

    def holds(self) -> bool:
        """Whether every word is unchanged."""
        memory = _memory()
        # Into a new tensor each time, because two threads may check at once; in order of depth.
        return all(
            torch.equal(torch.index_select(memory, 0, index), before)
            for index, before in self._depths
        )

    def moved(self, addresses: list[int]) -> list[bool]:
        """Returns which of these words (of depth 0) changed."""
        values = self._depths[0][1].tolist() if self._addresses else []
        before = dict(zip(self._addresses, values, strict=True))
        return [ctypes.c_int64(word(address)).value != before[address] for address in addresses]
