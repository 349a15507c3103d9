"""The user's secret: 32 random bytes in the cache folder, by which its entries are authenticated.

Whoever can read it can make entries that are loaded: the file has mode 0600.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from tracer_core.storage.cache_location import not_private, opened, put

NAME = "secret"
_BYTES = 32


def secret_of(root: Path) -> bytes:
    """Returns the secret of a cache folder, made if there is none that only this user can read:
    what was authenticated with another one is no entry any more. Raises OSError if it cannot be
    written."""
    path = root / NAME
    known = _read(path)
    if known is not None:
        return known
    descriptor, result = tempfile.mkstemp(dir=root, prefix=".new-")  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())  # all entries are lost with it
        with contextlib.suppress(FileExistsError):  # another process was the first
            os.link(result, path)
        known = _read(path)
        if known is None:  # damaged, or readable for others
            put(result, path)
            known = _read(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(result)
    if known is None:
        raise OSError(f"{path} cannot be kept secret")
    return known


def _read(path: Path) -> bytes | None:
    try:
        with opened(path) as (descriptor, result):
            if not stat.S_ISREG(result.st_mode) or not_private(result) is not None:
                return None
            if hasattr(os, "geteuid") and result.st_mode & 0o077:
                return None
            data = os.read(descriptor, _BYTES + 1)
    except OSError:
        return None
    return data if len(data) == _BYTES else None
