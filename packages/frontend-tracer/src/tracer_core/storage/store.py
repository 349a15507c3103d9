"""The store: bytes under keys that outlive the process, in folders of the cache by kind.

An entry is a file ``<cache>/<kind>/<key>``: the bytes, and a footer that binds them to their kind,
key and machine by an HMAC with the user's secret. An entry that was truncated, changed, exchanged
with another one, written by another user or made for another machine is reported and not used. It
appears whole or not at all (one atomic rename). ELF loaders ignore what follows an image, so that
the file of a library can be loaded as it is.

The size of the store stays below TRACER_CACHE_LIMIT: what was not used for longest is removed. With
TRACER_STORE it asks a fleet's store for what it does not have (`tracer_core.storage.fleet`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import os
import re
import secrets
import shutil
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tracer_core.debug.logs import logger, note
from tracer_core.errors import StoredError
from tracer_core.options import env
from tracer_core.storage import file_lock
from tracer_core.storage.cache_location import (
    CacheLocationError,
    cache_folder,
    in_private_folder,
    not_private,
    opened,
    put,
)
from tracer_core.storage.fleet import fleet
from tracer_core.storage.secret import secret_of

#: Must change with the layout of the footer or the calling convention of the images.
FORMAT = b"tcso0003"
_MACHINE, _DIGEST = 16, 32
_FOOTER = len(FORMAT) + _MACHINE + _DIGEST
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

#: Files under construction, and folders of such. A process that makes one holds a lock of its name;
#: where there are no locks, what is older than these seconds was left by a killed process.
BUILDS, _NEW = ".build-", ".new-"
_ABANDONED = 3600.0
#: Seconds between two notes of an entry's use.
_USED = 3600.0
#: Bytes that a process writes before it looks at the size of the store again.
_LOOKS = 64 << 20
#: The share of the limit that is left when entries are removed.
_LEFT = 0.9

#: Why an entry cannot be used that is not there.
_MISSING = "not in the cache"
#: Files for which a warning was logged.
_told: set[Path] = set()
#: Bytes that may be written until the next look at the size, by cache folder.
_until_look: dict[Path, int] = {}

T = TypeVar("T")


def packed(image: bytes, machine: str) -> bytes:
    """Returns bytes for `unpacked` on another machine, which detect damage but not malice.

    Args:
        image: The content.
        machine: 16 characters that differ between machines that need different code.
    """
    head = FORMAT + machine.encode()
    return image + head + hashlib.sha256(image + head).digest()


def unpacked(data: bytes, machine: str) -> tuple[bytes | None, str]:
    """Returns what `packed` was given.

    Args:
        data: Bytes from `packed`.
        machine: The `machine` of this one.

    Returns:
        The content and "", or None and what is wrong.
    """
    image, foot = data[:-_FOOTER], data[-_FOOTER:]
    digest = hashlib.sha256(image + foot[:-_DIGEST]).digest()
    problem = _wrong(foot, machine, digest, "damaged: its checksum is wrong")
    return (image, "") if problem is None else (None, problem)


def _wrong(foot: bytes, machine: str, digest: bytes, otherwise: str) -> str | None:
    if not foot.startswith(FORMAT) or len(foot) != _FOOTER:
        return "not an entry of this version, or cut short"
    if not hmac.compare_digest(digest, foot[-_DIGEST:]):
        return otherwise
    return (
        None if foot[len(FORMAT) : -_DIGEST] == machine.encode() else "built for another processor"
    )


@dataclass(frozen=True, slots=True)
class Store:
    """The entries of one kind.

    Methods that write raise CacheLocationError where no folder can be written to.
    """

    #: The name of their folder.
    kind: str
    #: 16 characters that differ between machines that need different code.
    machine: str = "any machine     "

    def __post_init__(self) -> None:
        if len(self.machine.encode()) != _MACHINE:
            raise ValueError(f"machine={self.machine!r}: {_MACHINE} characters")

    def inside(self, make: Callable[[Folder], T]) -> T:
        """Returns make(the folder of this kind), again with a temporary folder where `make` raises
        OSError."""
        return in_private_folder(
            self.kind, lambda folder, problem: make(Folder(self, folder, problem))
        )

    def read(self, key: str) -> bytes | None:
        """Returns the bytes of an entry, or None; logs why if there is one that cannot be used."""
        return self.inside(lambda folder: folder.read(key))

    def write(self, key: str, image: bytes) -> None:
        self.inside(lambda folder: folder.write(key, image))


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of a store, for the time of one operation.

    Methods that write raise OSError where a file cannot be written.
    """

    #: The store.
    store: Store
    #: The path of the folder.
    path: Path
    #: Why it is a temporary one, or None.
    problem: str | None = None

    @property
    def name(self) -> str:
        """The folder's name for messages."""
        return str(self.path) if self.problem is None else f"no disk cache: {self.problem}"

    def is_empty(self) -> bool:
        """Returns whether nothing but locks and what is under construction is here."""
        others = (file_lock.NAME, BUILDS, _NEW)
        return all(path.name.startswith(others) for path in self.path.iterdir())

    def read(self, key: str) -> bytes | None:
        """Returns an entry of this folder, or of the fleet's store, which it then has too."""
        return self._found(key)[1]

    def find(self, key: str) -> tuple[Path, str | None]:
        """Returns (the file of an entry, None) if it may be loaded, else (the path, why not)."""
        return self.path / key, self._found(key)[0]

    def write(self, key: str, image: bytes, load: Callable[[Path], Any] | None = None) -> Any:
        """Writes an entry and returns load(its file), called before others see it: what it raises
        leaves no entry. A fleet's store gets it later."""
        loaded = self._write(key, image, load)
        shared = fleet()
        if shared is not None:
            shared.share(self.store.kind, self.store.machine, key, image)
        return loaded

    def _write(self, key: str, image: bytes, load: Callable[[Path], Any] | None = None) -> Any:
        if not _KEY.fullmatch(key):
            raise ValueError(f"key={key!r}")
        data = image + self._foot(key, image)
        with self._new(_NEW) as result:
            with open(result, "xb", opener=_private) as file:
                file.write(data)
            loaded = None if load is None else load(result)
            put(result, self.path / key)
        _keep_below_limit(self.path.parent, len(data))
        return loaded

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Makes a folder for files under construction."""
        with self._new(BUILDS) as folder:
            folder.mkdir(mode=0o700)
            yield folder

    @contextlib.contextmanager
    def _new(self, prefix: str) -> Iterator[Path]:
        """Yields a new path in the folder; what is there afterwards is removed."""
        path = self.path / f"{prefix}{secrets.token_hex(8)}"
        with file_lock.held(self.path / file_lock.NAME, _lock_key(path), file_lock.NEW):
            try:
                yield path
            finally:
                with contextlib.suppress(OSError):  # the next process that writes tries again
                    _remove_new(path)

    def building(self, key: str, part: bool = False) -> contextlib.AbstractContextManager[None]:
        """Makes processes that want the same entry at once wait for the first, then find it.

        part: the entry is part of others, whose builders wait for it, so it has separate locks
        against deadlock."""
        of = file_lock.PARTS if part else file_lock.ENTRIES
        digest = hashlib.sha256(key.encode()).digest()
        return file_lock.held(self.path / file_lock.NAME, digest, of)

    def _foot(self, key: str, image: bytes) -> bytes:
        head = FORMAT + self.store.machine.encode()
        return head + self._digest(key, image, head)

    def _digest(self, key: str, image: bytes, head: bytes) -> bytes:
        name = f"{self.store.kind}\0{key}\0{len(image)}\0".encode()
        digest = hmac.new(secret_of(self.path.parent), name, hashlib.sha256)
        digest.update(image)
        digest.update(head)
        return digest.digest()

    def _found(self, key: str) -> tuple[str | None, bytes | None]:
        """Does `_read`; what is missing here may be in the fleet's store."""
        problem, image = self._read(key)
        if problem != _MISSING or (shared := fleet()) is None:
            return problem, image
        image = shared.fetch(self.store.kind, self.store.machine, key)
        if image is None:
            return problem, None
        note("cache", "%s: found in the fleet's store", self.path / key)
        self._write(key, image)
        return None, image

    def _read(self, key: str) -> tuple[str | None, bytes | None]:
        """Returns (None, the image), or (why the entry cannot be used, None)."""
        path = self.path / key
        try:
            with opened(path) as (descriptor, result):
                problem = not_private(result) if stat.S_ISREG(result.st_mode) else "not a file"
                if result.st_size > env().cache_limit:
                    problem = problem or "larger than the whole store may be"
                data = b""
                if problem is None:
                    with open(descriptor, "rb", closefd=False) as file:
                        data = file.read()
                if problem is None and time.time() - result.st_mtime > _USED:
                    os.utime(descriptor)
        except FileNotFoundError:
            return _MISSING, None
        except OSError as error:
            return f"cannot be read: {error.strerror}", None
        image, foot = data[:-_FOOTER], data[-_FOOTER:]
        if problem is None:
            digest = self._digest(key, image, foot[:-_DIGEST])
            otherwise = "damaged, or not written by this user under this name"
            problem = _wrong(foot, self.store.machine, digest, otherwise)
            if problem is not None:
                note("cache", "%s is not used: %s", path, problem)
        elif path not in _told:
            _told.add(path)
            logger().warning("%s is not loaded: %s. It is made again in its place.", path, problem)
        return problem, image if problem is None else None


# -- the store as a whole


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What is in the cache."""

    folder: Path
    #: Bytes of all files.
    size: int
    #: Bytes above which what was not used for longest is removed.
    limit: int
    #: Kind -> (number of files, bytes).
    entries: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Why the folder cannot be used, or None.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    kind: str
    size: int
    used: float


def info() -> CacheInfo:
    """Returns what is in the cache folder."""
    limit = env().cache_limit
    try:
        root = cache_folder()
    except CacheLocationError as error:
        return CacheInfo(error.path, 0, limit, problem=error.reason)
    entries: dict[str, tuple[int, int]] = {}
    for file in _files(root):
        number, size = entries.get(file.kind, (0, 0))
        entries[file.kind] = number + 1, size + file.size
    return CacheInfo(root, sum(size for _, size in entries.values()), limit, entries)


def clear() -> int:
    """Removes all entries, of all kinds, and returns the bytes freed. What a process has
    loaded stays loaded. Raises CacheLocationError if the folder is not this user's own."""
    return _remove(_files(cache_folder()))


def prune(limit: int | None = None) -> int:
    """Removes what was not used for longest until at most `limit` bytes are left (by default
    TRACER_CACHE_LIMIT), and what killed processes have left; returns the bytes freed. Raises
    CacheLocationError if the folder is not this user's own."""
    return _prune(cache_folder(), env().cache_limit if limit is None else limit)


def save_artifacts() -> bytes:
    """Returns all entries of the cache folder, for `load_artifacts` in another folder or machine.

    For a small value, give the process that compiles a folder of its own (TRACER_CACHE_DIR).

    Returns:
        A zip file.

    Examples:
        >>> Path("compiled.bin").write_bytes(tracer_core.cache.save_artifacts())
    """
    root, result = cache_folder(), io.BytesIO()
    with zipfile.ZipFile(result, "w") as file:
        for entry in _files(root):
            with contextlib.suppress(OSError):  # another process may remove it meanwhile
                machine = entry.path.read_bytes()[-_FOOTER:][len(FORMAT) : -_DIGEST].decode(
                    "latin1"
                )
                store, key = Store(entry.kind, machine.ljust(_MACHINE)), entry.path.name
                image = store.read(key) if _KEY.fullmatch(key) else None
                if image is not None:
                    file.writestr(f"{entry.kind}/{key}", packed(image, machine))
    return result.getvalue()


def load_artifacts(data: bytes) -> int:
    """Puts entries of `save_artifacts` into the cache folder.

    Entries hold code, which later calls run: load what comes from someone you trust. Entries for
    another processor, release of torch or program are not used.

    Args:
        data: What `save_artifacts` returned.

    Returns:
        The number of entries.

    Raises:
        StoredError: The data is damaged, or something else.

    Examples:
        >>> tracer_core.cache.load_artifacts(Path("compiled.bin").read_bytes())
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            for name in file.namelist():
                (kind, _, key), content = name.partition("/"), file.read(name)
                machine = _machine(content)
                image, problem = unpacked(content, machine)
                if image is None or not (_KEY.fullmatch(kind) and _KEY.fullmatch(key)):
                    raise StoredError(f"{name!r}: {problem or 'not the name of an entry'}")
                Store(kind, machine).write(key, image)
            return len(file.namelist())
    except zipfile.BadZipFile as error:
        raise StoredError(f"these are no entries of a cache: {error}") from error


def _machine(data: bytes) -> str:
    """Returns the machine that the footer of an entry names; "" where it has none."""
    foot = data[-_FOOTER:]
    return foot[len(FORMAT) : -_DIGEST].decode() if foot.startswith(FORMAT) else ""


def _prune(root: Path, limit: int) -> int:
    freed = _remove_abandoned(root)
    files = sorted(_files(root), key=lambda file: file.used)
    size = sum(file.size for file in files)
    surplus = []
    for file in files if size > limit else ():
        if size <= limit * _LEFT:
            break
        size -= file.size
        surplus.append(file)
    return freed + _remove(surplus)


def _keep_below_limit(root: Path, written: int) -> None:
    left = _until_look.get(root, 0) - written
    if left < 0:
        left = _LOOKS
        with contextlib.suppress(OSError):  # another process may remove files meanwhile
            _prune(root, env().cache_limit)
    _until_look[root] = left


def _files(root: Path) -> list[_File]:
    """Returns the files below the folders of all kinds, without those that locks are held on."""
    result = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(BUILDS)]
        kind = Path(folder).relative_to(root).parts[:1]
        for name in names if kind else ():
            path = Path(folder, name)
            with contextlib.suppress(OSError):
                state = path.lstat()
                if name != file_lock.NAME:
                    result.append(_File(path, kind[0], state.st_size, state.st_mtime))
    return result


def _remove(files: list[_File]) -> int:
    freed = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            file.path.unlink()
            freed += file.size
    return freed


def _remove_abandoned(root: Path) -> int:
    """Removes what processes that were killed were writing."""
    freed, now = 0, time.time()
    for path in (*root.glob(f"*/{BUILDS}*"), *root.glob(f"*/{_NEW}*"), *root.glob(f"{_NEW}*")):
        with contextlib.suppress(OSError):
            state = path.lstat()
            locks = path.with_name(file_lock.NAME)
            free = file_lock.is_free(locks, _lock_key(path), file_lock.NEW)
            if free is None:
                free = now - state.st_mtime > _ABANDONED
            if free:
                freed += state.st_size
                _remove_new(path)
    return freed


def _remove_new(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock_key(path: Path) -> bytes:
    return hashlib.sha256(path.name.encode()).digest()


def _private(path: str, flags: int) -> int:
    """Opens a new file that only this user may read, write or execute, whatever the umask."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o700)
    return descriptor
