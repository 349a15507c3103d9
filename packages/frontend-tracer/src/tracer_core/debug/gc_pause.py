"""Pauses Python's cyclic garbage collector while graphs are compiled.

A compilation makes many small objects that survive, so the collector would traverse the whole heap
again and again: 0.25 s each time with the libraries of a model loaded, a fifth of our share of a
first call. Reference counting goes on. When the last nested or concurrent block ends, the collector
runs again if it did before the first.
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
    """Disables automatic cyclic collection inside the block; any number of threads may nest."""
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
    """Returns glibc's malloc_trim, or None on other systems."""
    try:
        function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # no handle for the process itself: not glibc
        return None
    return function


def give_back_free_memory() -> None:
    """Returns free memory of malloc's heap to the system.

    After a capture these are 20 to 55 MB, which glibc would keep; it takes a few milliseconds.
    """
    trim = _trim()
    if trim is not None:
        trim(0)
