"""Files of machine code in the cache: an image, and a footer that detects damage before the image
is loaded.

A file appears whole or not at all (one atomic rename). A file that another user owns or may write
to, that was truncated or changed, or that was made for another machine is reported and not used.
ELF loaders ignore what follows the image, so the footer stays in the loaded file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tracer_core.debug.logs import logger
from tracer_core.storage.cache_location import not_private

#: Must change with the layout of the footer or the calling convention of the images.
FORMAT = b"tcso0001"
_MACHINE, _DIGEST = 16, 32
_FOOTER = len(FORMAT) + _MACHINE + _DIGEST

#: Files for which a warning was logged.
_told: set[Path] = set()


@dataclass(frozen=True, slots=True)
class Entries:
    """Seals and checks files of one kind.

    machine: 16 characters that differ between machines that need different code.
    """

    machine: str

    def __post_init__(self) -> None:
        if len(self.machine.encode()) != _MACHINE:
            raise ValueError(f"machine={self.machine!r}: {_MACHINE} characters")

    def seal(self, image: bytes) -> bytes:
        """Returns the content of the file that holds the image."""
        head = FORMAT + self.machine.encode()
        return image + head + hashlib.sha256(image + head).digest()

    def check(self, data: bytes) -> str | None:
        """Returns None if `data` is a whole entry for this machine, else what is wrong."""
        image, foot = data[:-_FOOTER], data[-_FOOTER:]
        if not foot.startswith(FORMAT):
            return "not a library of this version, or cut short"
        if hashlib.sha256(image + foot[:-_DIGEST]).digest() != foot[-_DIGEST:]:
            return "damaged: its checksum is wrong"
        return None if data == self.seal(image) else "built for another processor"

    def check_file(self, path: Path) -> str | None:
        """Returns None if the file may be loaded, else why not; logs a file of another user
        once.
        """
        return self._read(path)[0]

    def image(self, path: Path) -> bytes | None:
        """Returns the image in the file, or None if `check_file` rejects the file."""
        problem, data = self._read(path)
        return data[:-_FOOTER] if problem is None else None

    def write(self, path: Path, image: bytes) -> None:
        replace_file(path, self.seal(image))

    def _read(self, path: Path) -> tuple[str | None, bytes]:
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno())
                problem = not_private(found) if stat.S_ISREG(found.st_mode) else "not a file"
                data = file.read() if problem is None else b""
        except FileNotFoundError:
            return "not in the cache", b""
        except OSError as error:
            return f"cannot be read: {error.strerror}", b""
        if problem is not None and path not in _told:
            _told.add(path)
            logger().warning("%s is not loaded: %s. It is made again in its place.", path, problem)
        return problem or self.check(data), data


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file of mode 0700 by one atomic rename, so that readers see the old or the new
    content.
    """
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
