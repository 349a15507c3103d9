"""The cache folder: where compiled files are kept between processes.

The folder is ``TRACER_CACHE_DIR``, else ``$XDG_CACHE_HOME/tracer``, else ``~/.cache/tracer``. Where
it cannot be used, a temporary folder replaces it, which is removed when the process ends. Because
machine code is loaded from these folders, every folder returned belongs to this user, and no other
user can write to it or put another folder in its place.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tracer_core.debug.logs import logger
from tracer_core.errors import TracerError
from tracer_core.options import env

#: Bytes that must fit beside the existing files for a folder to count as usable.
_ROOM = 4 << 20

#: Where the temporary folder is made if Python finds no usable temporary folder: memory, on Linux.
_MEMORY = "/dev/shm"


class CacheLocationError(TracerError):
    """The cache folder cannot be made, or is not private to this user. path; reason."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"cache folder {path}: {reason}\n  Set TRACER_CACHE_DIR to a folder of your own."
        )


def cache_folder(*parts: str) -> Path:
    """Returns the folder ``<cache>/<parts...>``, made with mode 0700 if it is missing.

    Raises CacheLocationError if it cannot be made or written to, belongs to another user, is
    writable for others, or lies where another user can exchange it.
    """
    try:
        root = Path(env().cache_dir).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # no home folder, or the working folder is gone
        raise CacheLocationError(Path(env().cache_dir), str(error)) from error
    folder = root.joinpath(*parts)
    try:
        for path in (
            *reversed(root.parents),
            root,
            *(root.joinpath(*parts[: i + 1]) for i in range(len(parts))),
        ):
            # one by one: Path.mkdir gives missing parents the mode of the umask
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)  # another process may make it meanwhile
        for above in _above(root):
            problem = _exchangeable(above)
            if problem is not None:
                raise CacheLocationError(root, f"{above}, where it lies, {problem}")
        for path in (root, *(root.joinpath(*parts[: i + 1]) for i in range(len(parts)))):
            result = path.stat() if path == root else path.lstat()
            problem = not_private(result) if stat.S_ISDIR(result.st_mode) else "is not a folder"
            if problem is not None and not (path != folder and _keeps_folders_apart(result)):
                raise CacheLocationError(path, problem)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CacheLocationError(folder, "this user cannot write to it")
    except OSError as error:
        raise CacheLocationError(folder, error.strerror or str(error)) from error
    reason = _unusable.get(folder)
    if reason is not None:
        raise CacheLocationError(folder, reason)
    return folder


def _above(root: Path) -> Iterator[Path]:
    """Yields the folders and links that lead to the cache folder, of its path and of where that
    leads in the end."""
    yield from root.parents
    if root.is_symlink():
        yield root
    yield from Path(os.path.realpath(root)).parents


def _exchangeable(path: Path) -> str | None:
    """Returns why another user can put something else in the place of what lies in a folder, or of
    a link; None if only this user and root can."""
    if not hasattr(os, "geteuid"):
        return None
    result = path.lstat()
    if result.st_uid not in (0, os.geteuid()):
        return f"belongs to user id {result.st_uid}"
    if stat.S_ISLNK(result.st_mode) or _keeps_folders_apart(result):
        return None
    if result.st_mode & stat.S_IWOTH:
        return "can be written to by all users (chmod o-w it)"
    if not _is_own_group(result.st_gid):
        return f"can be written to by group {result.st_gid} (chmod g-w it)"
    return None


@functools.cache
def _is_own_group(gid: int) -> bool:
    """Whether a group has no member but this user: each user's own one of many Linux systems,
    which let it write to home folders; root's own in containers."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
        group = grp.getgrgid(gid)
    except KeyError:  # a user or group that the system does not list, as in containers
        return gid == os.getegid()
    return gid == os.getegid() and group.gr_name in (user, "root") and set(group.gr_mem) <= {user}


def private_folder(*parts: str) -> tuple[Path, str | None]:
    """Returns a folder for files of this user, usually in the folder of the persistent cache.

    Args:
        *parts: The path of the folder in it.

    Returns:
        The folder and None; or a temporary folder of this process and why the cache cannot be used,
        which is logged as a warning once.

    Raises:
        CacheLocationError: No temporary folder can be made either.
    """
    try:
        return cache_folder(*parts), None
    except CacheLocationError as error:
        folder = _temporary().joinpath(*parts)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _log_once(str(error), folder)
        return folder, f"{error.path}: {error.reason}"


T = TypeVar("T")


def in_private_folder(kind: str, make: Callable[[Path, str | None], T]) -> T:
    """Returns make(folder, why it is not the cache's or None) for `private_folder` of a kind, again
    with a temporary folder where a file cannot be written to the first or loaded from there.

    Raises CacheLocationError if there is no folder in which it can be done.
    """
    while True:
        folder, problem = private_folder(kind)
        try:
            return make(folder, problem)
        except OSError as error:
            _leave_folder(folder, error)


def _leave_folder(folder: Path, error: OSError) -> None:
    """Marks a folder from `private_folder` as unusable: later calls return a temporary folder
    instead.

    error: why a file of the folder could not be written or loaded. Raises CacheLocationError if the
    folder is itself a temporary one.
    """
    reason = error.strerror or str(error)
    if folder.is_relative_to(_temporary()):
        reason = f"{reason}, and so in the cache folder {env().cache_dir}"
        raise CacheLocationError(folder, reason) from error
    _unusable[folder] = reason


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """Opens whatever lies at a path for reading, without following a link or waiting for a pipe;
    yields (descriptor, its state). Raises OSError where that cannot be done."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def put(text: str | Path, path: Path) -> None:
    """Renames a file of a private folder, which replaces whatever is there, a folder too."""
    try:
        os.replace(text, path)
    except IsADirectoryError:
        shutil.rmtree(path)
        os.replace(text, path)


def demand_room(folder: Path) -> None:
    """Raises OSError if a few MiB cannot be written to a folder.

    Called when a compiler failed: the caller cannot tell a full disk from an error in the source.

    Args:
        folder: The folder.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_ROOM))


def not_private(status: os.stat_result, root_too: bool = False) -> str | None:
    """Returns why another user may have written this file or folder, or None if only this user can
    have, or root if `root_too`.
    """
    if not hasattr(os, "geteuid"):  # no POSIX ownership to check
        return None
    if status.st_uid != os.geteuid() and not (root_too and status.st_uid == 0):
        return f"belongs to user id {status.st_uid}, not to {os.geteuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write to it (chmod go-w it)"
    return None


def _keeps_folders_apart(match: os.stat_result) -> bool:
    """Whether only this user and root can replace this user's folders in it, as in /tmp."""
    others = match.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return match.st_uid in (0, os.geteuid()) and (not others or bool(match.st_mode & stat.S_ISVTX))


#: Folders whose files this process could not write or load -> why.
_unusable: dict[Path, str] = {}
#: Reasons that were logged.
_told: set[str] = set()


def _log_once(reason: str, folder: Path) -> None:
    if reason not in _told:
        _told.add(reason)
        text = "%s\n  Until then what is compiled is stored in %s, for this process alone."
        logger().warning(text, reason, folder)


@functools.cache
def _temporary() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="tracer-"))
    except OSError as error:
        try:
            folder = Path(tempfile.mkdtemp(prefix="tracer-", dir=_MEMORY))
        except OSError:
            reason = f"neither it nor a temporary folder can be written to: {error}"
            raise CacheLocationError(Path(env().cache_dir), reason) from error
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
