"""Files of the cache: a compiled image or object and a footer by which damage is seen before it is used.

In: bytes and keys. Out: entries in a folder that only the user may write to. What always holds: an entry is written by
one atomic rename; processes that want the same one at once wait for the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from inductor_backend.runtime.toolchain import processor
from tracer_core.plugin_api import env

#: Changes when the file format or the calling convention changes.
FORMAT = b"tcso0001"
_SLOTS = 1 << 20
FOOTER = len(FORMAT) + 16 + 32  # format, processor digest, SHA-256


def cache_directory(part: str = "inductor-cpp") -> tuple[Path, str]:
    """(folder for entries, how to call it in messages). Private to the user: 0700, owned by us.

    A library that others may write is code that others may run as us, so a folder that is not ours
    is not used: a private temporary one is, which lasts as long as the process.
    """
    wanted = Path(env().cache_dir).expanduser().absolute() / part
    problem = _make_private(wanted)
    return (wanted, str(wanted)) if problem is None else (_temporary(part), f"no disk cache: {problem}")


@functools.lru_cache(maxsize=64)
def _make_private(folder: Path) -> str | None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        facts = folder.stat()
        if facts.st_uid != os.getuid():
            return f"{folder} belongs to another user"
        if stat.S_IMODE(facts.st_mode) & 0o077:
            folder.chmod(0o700)
        if not os.access(folder, os.W_OK):
            return f"{folder} is not writable"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


@functools.cache
def _temporary(part: str) -> Path:
    import atexit

    folder = Path(tempfile.mkdtemp(prefix=f"tracer-{part}-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@contextlib.contextmanager
def one_builder(directory: Path, key: str, part: bool = False) -> Iterator[None]:
    """Processes that want the same entry at once wait for the first, then find it.

    part: the entry is a part of others, whose builders wait for it: it has locks of its own, or they would wait for
    themselves. Only an optimisation (entries are atomic), so a file system without locks is no error.
    """
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _descriptors.add(descriptor)
    slot = int(key[:8], 16) % _SLOTS + part * _SLOTS  # one byte of the lock file a key: no file is left behind
    try:
        with contextlib.suppress(OSError):
            _lock(descriptor, slot, fcntl.F_WRLCK)
        yield
    finally:
        with contextlib.suppress(OSError):  # closing is not enough: a forked child may have it open too
            _lock(descriptor, slot, fcntl.F_UNLCK)
        _descriptors.discard(descriptor)
        os.close(descriptor)


#: Lock files that threads of this process have open.
_descriptors: set[int] = set()


def _new_process() -> None:
    """A forked child has none of the threads that hold locks, but would hold their locks with them."""
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


os.register_at_fork(after_in_child=_new_process)


def _lock(descriptor: int, byte: int, kind: int) -> None:
    """Waits for one byte of the file, which belongs to the descriptor then, or gives it back. (Locks of POSIX belong to
    the process: the first thread that closes the file would give back those of all.)"""
    if sys.platform != "linux":
        fcntl.lockf(descriptor, fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_UN, 1, byte)
        return
    request = struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, request)


def footer(image: bytes) -> bytes:
    head = FORMAT + processor()[1].encode()
    return head + hashlib.sha256(image + head).digest()


def check_bytes(data: bytes) -> str | None:
    """None if `data` is a whole entry for this processor, else what is wrong."""
    image, foot = data[:-FOOTER], data[-FOOTER:]
    if not foot.startswith(FORMAT):
        return "not a library of this version, or cut short"
    if hashlib.sha256(image + foot[:-32]).digest() != foot[-32:]:
        return "damaged: its checksum is wrong"
    if foot != footer(image):
        return "built for another processor"
    return None


def check_file(path: Path) -> str | None:
    try:
        return check_bytes(path.read_bytes())
    except FileNotFoundError:
        return "not in the cache"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def write_entry(path: Path, image: bytes) -> None:
    replace(path, image + footer(image))


def replace(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o700)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
