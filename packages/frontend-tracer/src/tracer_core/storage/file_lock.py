"""Locks between processes: one byte of a file for each key, and never waited for without end.

Only an optimization, because entries appear whole: a process that was stopped while it held a lock
costs others `MAX_LOCK_SECONDS` seconds, and a file system without locks nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tracer_core.debug.logs import logger
from tracer_core.limits import MAX_LOCK_SECONDS

NAME = "lock"
_SLOTS = 1 << 20
_TAKEN = (errno.EAGAIN, errno.EACCES)
_FIRST_WAIT, _MAX_WAIT = 0.002, 0.1

#: Lock files that threads of this process have open.
_descriptors: set[int] = set()


#: Sets of locks: of entries; of entries that are parts of others, taken inside the first; of files
#: under construction.
ENTRIES, PARTS, NEW = range(3)


@contextlib.contextmanager
def held(path: Path, key: bytes, of: int = ENTRIES) -> Iterator[None]:
    """Holds the lock of a key. of: the set of locks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileNotFoundError:  # the folder
        raise
    except OSError:  # something else lies there
        descriptor = -1
    if descriptor < 0:
        yield
        return
    _descriptors.add(descriptor)
    slot = _slot(key, of)
    try:
        _take(descriptor, slot, path)
        yield
    finally:
        # a forked child may also have it open, so closing does not unlock
        with contextlib.suppress(OSError):
            _lock(descriptor, slot, fcntl.F_UNLCK)
        _descriptors.discard(descriptor)
        os.close(descriptor)


def is_free(path: Path, key: bytes, of: int) -> bool | None:
    """Returns whether no process holds the lock of a key; None where that cannot be found out."""
    if sys.platform != "linux":
        return None  # to close the file would release this process's own locks
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        _lock(descriptor, _slot(key, of), fcntl.F_WRLCK)
    except OSError as error:
        return False if error.errno in _TAKEN else None
    finally:
        os.close(descriptor)
    return True


def _slot(key: bytes, of: int) -> int:
    return int.from_bytes(key[:4], "little") % _SLOTS + of * _SLOTS


def _take(descriptor: int, slot: int, path: Path) -> None:
    end, wait = time.monotonic() + MAX_LOCK_SECONDS, _FIRST_WAIT
    while True:
        try:
            _lock(descriptor, slot, fcntl.F_WRLCK)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                return  # a file system without locks
        if time.monotonic() > end:
            logger().info(
                "%s: another process holds a lock for %d s; not waited for", path, MAX_LOCK_SECONDS
            )
            return
        time.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT)


def _new_process() -> None:
    """Closes inherited lock files: a forked child lacks the threads that hold them, but would keep
    their locks alive."""
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_new_process)


def _lock(descriptor: int, byte: int, kind: int) -> None:
    """Locks one byte of the file for the descriptor, or unlocks it; raises OSError where another one
    holds it. (Classic POSIX locks belong to the process: the first thread that closes the file would
    release those of all.)"""
    if sys.platform != "linux":
        take = fcntl.LOCK_EX | fcntl.LOCK_NB
        fcntl.lockf(descriptor, take if kind == fcntl.F_WRLCK else fcntl.LOCK_UN, 1, byte)
        return
    request = struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
