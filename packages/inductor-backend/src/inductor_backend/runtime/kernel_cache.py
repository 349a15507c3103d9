"""The disk cache of compiled libraries and objects: its folder, file format, and build locks.

The folder is writable by this user only. Processes that want the same entry at once wait for the
first.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from inductor_backend.runtime.cpp.toolchain import processor
from tracer_core.plugin_api import Entries, private_folder

_SLOTS = 1 << 20


def cache_directory(part: str = "inductor-cpp") -> tuple[Path, str]:
    """Returns (folder for entries, its name in messages). Raises CacheLocationError if no folder
    can be written to."""
    folder, problem = private_folder(part)
    return folder, str(folder) if problem is None else f"no disk cache: {problem}"


@functools.cache
def entries() -> Entries:
    """Returns the files of libraries and objects that run on this processor."""
    return Entries(processor()[1])


@contextlib.contextmanager
def one_builder(directory: Path, key: str, part: bool = False) -> Iterator[None]:
    """Makes processes that want the same entry at once wait for the first, then find it.

    part: the entry is part of others, whose builders wait for it, so it has separate locks against
    deadlock. Only an optimization (entries are atomic), so a file system without locks is no error.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _descriptors.add(descriptor)
    # one byte of the lock file per key, not one file per key
    slot = int(key[:8], 16) % _SLOTS + part * _SLOTS
    try:
        with contextlib.suppress(OSError):
            _lock(descriptor, slot, fcntl.F_WRLCK)
        yield
    finally:
        # a forked child may also have it open, so closing does not unlock
        with contextlib.suppress(OSError):
            _lock(descriptor, slot, fcntl.F_UNLCK)
        _descriptors.discard(descriptor)
        os.close(descriptor)


#: Lock files that threads of this process have open.
_descriptors: set[int] = set()


def _new_process() -> None:
    """Closes inherited lock files: a forked child lacks the threads that hold them, but would keep
    their locks alive."""
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_new_process)


def _lock(descriptor: int, byte: int, kind: int) -> None:
    """Locks one byte of the file for the descriptor, waiting if needed, or unlocks it. (Classic
    POSIX locks belong to the process: the first thread that closes the file would release those of
    all.)"""
    if sys.platform != "linux":
        fcntl.lockf(descriptor, fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_UN, 1, byte)
        return
    request = struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, request)
