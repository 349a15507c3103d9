"""What a rank runs for test_dying_ranks.py: memory that was given back is given back again, by
another thread.
"""

from __future__ import annotations

import ctypes
import threading


def freed_by_two_threads() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    block, behind = libc.malloc(300), libc.malloc(300)
    libc.free(block)
    other = threading.Thread(target=libc.free, args=(block,))
    other.start()
    other.join()
    libc.free(behind)


def read_where_nothing_is() -> None:
    ctypes.string_at(8)
