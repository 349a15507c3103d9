"""Python's cyclic garbage collector, paused while graphs are compiled, and memory that a compile
leaves behind.

In: a block; or nothing. Out: nothing. What always holds: when the last such block ends, the
collector runs again if it did before the first; reference counting goes on all the time.

A compile makes many small objects that stay, which makes the collector look through the whole heap
again and again: with the libraries of a model loaded that is 0.25 s a time, a fifth of our share of
a first call.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import threading
from collections.abc import Callable, Iterator

_lock = threading.Lock()
_open_blocks = 0
_was_enabled = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Inside, no cyclic collection starts by itself; for any number of threads at once."""
    global _open_blocks, _was_enabled
    with _lock:
        if _open_blocks == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _open_blocks += 1
    try:
        yield
    finally:
        with _lock:
            _open_blocks -= 1
            if _open_blocks == 0 and _was_enabled:
                gc.enable()


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; None elsewhere."""
    try:
        found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no handle for the process itself: not a system with glibc
        return None
    return found


def give_back_free_memory() -> None:
    """Returns what is free in malloc's heap to the system: 20 to 55 MB after a capture, which glibc
    would keep, in a few milliseconds."""
    trim = _trim()
    if trim is not None:
        trim(0)
