"""Files of a user's choice that hold code: opens them if only this user or root can have written
them, and replaces them at once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import BinaryIO

from tracer_core.errors import StoredError
from tracer_core.storage.cache_location import not_private


def open_private(path: str | os.PathLike[str], trust: bool, function: str) -> BinaryIO:
    """Opens a file that holds code. function: the caller's name, for the message.

    Raises StoredError if another user owns the file or may write to it, unless `trust`; OSError.
    """
    file = open(path, "rb")  # noqa: SIM115  (the caller closes it)
    problem = None if trust else not_private(os.fstat(file.fileno()), root_too=True)
    if problem is None:
        return file
    file.close()
    raise StoredError(
        f"{path}: it {problem}, and what is loaded is code: whoever wrote it can run"
        f" anything in this process. {function}(..., trust=True) loads it all the same"
    )


def replace_file(
    path: str | os.PathLike[str], parts: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Writes a file of these parts, which appears at once and whole."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as file:
        try:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
