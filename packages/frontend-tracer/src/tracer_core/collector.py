"""Python's cyclic garbage collector, paused while graphs are compiled.

In: a block. Out: nothing. What always holds: when the last such block ends, the collector runs again if it
did before the first; reference counting goes on all the time.

A compile makes many small objects that stay, which makes the collector look through the whole heap again and
again: with the libraries of a model loaded that is 0.25 s a time, a fifth of our share of a first call.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

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
