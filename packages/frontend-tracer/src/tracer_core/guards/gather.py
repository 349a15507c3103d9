"""Reads many memory fields at once without a C compiler.

`GatherCheck` gives the same answers as `NativeCheck`. The address space is viewed as one int64
tensor, which reads nothing until it is indexed, so `index_select` with the addresses as indices
gathers all words in one call.
"""

from __future__ import annotations

import ctypes
import functools

import torch

from tracer_core.guards.watched_fields import WatchedFields

_START, _END = 1 << 16, 1 << 47  # user space; the first pages are never mapped


@functools.cache
def _memory() -> torch.Tensor:
    with torch.inference_mode(False):
        space = (ctypes.c_int64 * ((_END - _START) // 8)).from_address(_START)
        return torch.frombuffer(space, dtype=torch.int64)


class GatherCheck:
    """Compares memory fields with their recorded values, by torch's gather."""

    def __init__(self, watched: WatchedFields) -> None:
        memory = _memory()
        self._references = watched.references
        self._depths: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.inference_mode(False):
            for addresses in watched.depths:
                if addresses:
                    assert not any(address % 8 for address in addresses)
                    index = torch.tensor([(address - _START) >> 3 for address in addresses])
                    self._depths.append((index, torch.index_select(memory, 0, index)))

    def holds(self) -> bool:
        """Whether every word is unchanged."""
        memory = _memory()
        # Another thread may drop an object while torch reads.
        alive = [reference() for reference in self._references]
        if any(item is None for item in alive):
            return False
        # Into a new tensor each time, because two threads may check at once; in order of depth.
        return all(
            torch.equal(torch.index_select(memory, 0, index), before)
            for index, before in self._depths
        )

    def before(self) -> dict[int, int]:
        """Returns the recorded values of the words, by address."""
        result: dict[int, int] = {}
        for index, values in self._depths:
            addresses = [(place << 3) + _START for place in index.tolist()]
            unsigned = [ctypes.c_uint64(value).value for value in values.tolist()]
            result |= zip(addresses, unsigned, strict=True)
        return result
