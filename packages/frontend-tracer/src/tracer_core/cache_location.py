"""Where files that outlive the process are kept.

In: ``TRACER_CACHE_DIR`` (else ``$XDG_CACHE_HOME/tracer``, else ``~/.cache/tracer``). Out: folders under
it. What always holds: they belong to this user and nobody else can write to them, because what is read
back from them is loaded as machine code.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tracer_core.errors import TracerError
from tracer_core.options import env


class CacheLocationError(TracerError):
    """The cache folder cannot be made, or is not private to this user. path; reason."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"cache folder {path}: {reason}\n  Set TRACER_CACHE_DIR to a folder of your own.")


def cache_folder(*parts: str) -> Path:
    """The folder ``<cache>/<parts...>``, made if it is missing, with mode 0700.

    Raises CacheLocationError if it cannot be made, belongs to another user, or others may write to it.
    """
    root = Path(env().cache_dir).expanduser().absolute()
    folder = root.joinpath(*parts)
    try:
        for path in (root, *(root.joinpath(*parts[: i + 1]) for i in range(len(parts)))):
            # exist_ok: another process may make it at the same time.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _demand_private(path)
    except OSError as error:
        raise CacheLocationError(folder, str(error)) from error
    return folder


def _demand_private(path: Path) -> None:
    if not hasattr(os, "getuid"):  # no POSIX ownership to check
        return
    status = path.stat()
    if status.st_uid != os.getuid():
        raise CacheLocationError(path, f"belongs to user id {status.st_uid}, not to {os.getuid()}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheLocationError(path, "other users may write to it (chmod 700 it)")
