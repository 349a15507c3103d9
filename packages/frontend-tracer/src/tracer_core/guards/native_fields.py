"""Compares the guard cache's memory fields in C.

`NativeCheck` gives the same answers as `GatherCheck`; without a C compiler there is none.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tracer_core.guards.native_helper import helper
from tracer_core.guards.watched_fields import WatchedFields


class _GuardFields(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int64 * 3), ("words", ctypes.c_void_p), ("values", ctypes.c_void_p)]


class NativeCheck:
    """Compares memory fields with their recorded values, in C."""

    def __init__(self, holds: Any, take: Any, watched: WatchedFields) -> None:
        addresses = [address for depth in watched.depths for address in depth]
        self._addresses = (ctypes.c_uint64 * max(1, len(addresses)))(*addresses)
        self._values = (ctypes.c_uint64 * max(1, len(addresses)))()
        counts = (ctypes.c_int64 * 3)(*map(len, watched.depths))
        self._facts = _GuardFields(
            counts, ctypes.addressof(self._addresses), ctypes.addressof(self._values)
        )
        self.holds = functools.partial(holds, ctypes.addressof(self._facts))
        take(ctypes.addressof(self._facts), 0, len(addresses))

    def before(self) -> dict[int, int]:
        """Returns the recorded values of the words, by address."""
        return dict(
            zip(self._addresses[:], self._values[:], strict=True)
        )  # slices: lists, made in C


def native_check(watched: WatchedFields) -> NativeCheck | None:
    """Returns a check in C, or None if the helper is missing or disabled
    (TRACER_PYTHON_GUARDS=1).
    """
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    holds = helper("compare_fields", "guard_cache_holds", [pointer])
    take = helper("compare_fields", "guard_cache_take", [pointer, size, size])
    return None if holds is None else NativeCheck(holds, take, watched)
