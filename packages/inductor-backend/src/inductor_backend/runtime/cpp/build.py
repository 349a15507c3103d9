"""Compiles C++ text to a loaded library, through a disk cache that many processes share.

An entry is one file ``<key>.so`` whose last bytes are the SHA-256 of the rest (ELF loaders ignore
what follows the image). So one atomic rename writes it, damage is detected before loading, and the
same bytes can be stored elsewhere and loaded by another process without a compiler. The key covers
the texts, the prelude, compiler version, flags and the processor's features.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from inductor_backend.runtime.cpp.launch import launcher, maker
from inductor_backend.runtime.cpp.objects import LAUNCHER, Unit, compiled, key_of, run_compiler
from inductor_backend.runtime.cpp.toolchain import Toolchain, find_compiler
from inductor_backend.runtime.kernel_cache import cache_directory, entries, one_builder
from tracer_core.plugin_api import (
    BackendError,
    CacheLocationError,
    leave_folder,
    note,
    replace_file,
)


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded shared library. name: for messages. key: content digest. path: its file. hit: True
    if no compiler ran. reason: why it was a hit or a miss, for logs. seconds: build time."""

    name: str
    key: str
    path: Path
    hit: bool
    reason: str
    seconds: float
    handle: ctypes.CDLL = field(repr=False, compare=False)

    def address(self, function: str) -> int:
        """Returns the address of an exported function. Raises BackendError if the library lacks it."""
        try:
            return ctypes.cast(getattr(self.handle, function), ctypes.c_void_p).value or 0
        except AttributeError:
            raise BackendError(
                "inductor",
                "load",
                f"library {self.name!r} ({self.path}) exports no function {function!r}",
            ) from None

    def function(self, name: str, nargs: int, fails: bool = True) -> Callable[..., None]:
        """Returns a callable for ``TC_EXPORT void name(const int64_t* a)`` taking `nargs` tensors
        or ints.

        A tensor is passed as its data pointer. The GIL is released during the call. What a kernel
        reports by ``tc_fail`` is raised: IndexError for a bad index, RuntimeError for an integer
        division by zero. fails: whether a kernel of this function may report an error."""
        error = self._error_flag() if fails else 0
        return launcher(maker(self.handle), self.address(name), nargs, name, error, keep_alive=self)

    def _error_flag(self) -> int:
        """Returns the address of the prelude's ``tc_error``; 0 in a library built without the
        prelude."""
        try:
            return ctypes.addressof(ctypes.c_int.in_dll(self.handle, "tc_error"))
        except ValueError:
            return 0

    def read_binary(self) -> bytes:
        """Returns the entry as bytes, for `load_binary` in another process on the same kind of
        processor."""
        return self.path.read_bytes()


Made = TypeVar("Made", bound="Library | None")

_loaded: dict[str, Library] = {}
_loaded_lock = threading.Lock()


def _new_process() -> None:
    global _loaded_lock
    _loaded_lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_new_process)


def build(sources: Sequence[str | Unit], *, name: str) -> Library:
    """Compiles, links, caches and loads `sources`, one translation unit each.

    Raises BackendError with stage "toolchain" (no compiler) or "c++ compile" (with the compiler's
    first lines and the path of the kept source).
    """
    units = [source if isinstance(source, Unit) else Unit(source) for source in sources]
    try:
        tools = find_compiler()
    except BackendError:
        stored = _in_a_folder(
            lambda directory, where: _built_by_any_compiler(units, name, directory, where)
        )
        if stored is None:
            raise
        return stored
    key = key_of(units, tools)
    with _loaded_lock:
        known = _loaded.get(key)
    if known is not None:
        return _as_hit(known, "already loaded in this process")
    return _in_a_folder(
        lambda directory, where: _found_or_built(units, tools, key, name, directory, where)
    )


def _in_a_folder(make: Callable[[Path, str], Made]) -> Made:
    """Calls make(the cache's folder, its name for messages); with a temporary folder if files
    cannot be written or loaded there."""
    while True:
        try:
            directory, where = cache_directory()
            try:
                return make(directory, where)
            except OSError as error:
                leave_folder(directory, error)
        except CacheLocationError as error:
            raise BackendError("inductor", "load", str(error)) from error


def _found_or_built(
    units: Sequence[Unit], tools: Toolchain, key: str, name: str, directory: Path, where: str
) -> Library:
    path = directory / f"{key}.so"
    with one_builder(directory, key):
        damage = entries().check_file(path)
        if damage is None:
            return _load(name, key, path, True, f"found in the cache ({where})", 0.0)
        started = time.perf_counter()
        entries().write(path, _linked([*units, LAUNCHER], tools, directory, name))
        _link_for_any_compiler(units, path)
        seconds = time.perf_counter() - started
    return _load(
        name, key, path, False, f"compiled in {seconds:.2f} s: {damage} ({where})", seconds
    )


def _built_by_any_compiler(
    units: Sequence[Unit], name: str, directory: Path, where: str
) -> Library | None:
    """Returns the entry that any compiler made of these texts here before, for machines that have
    lost their compiler."""
    path = directory / f"{key_of(units, None)}.so"
    if entries().check_file(path) is not None:
        return None
    return _load(
        name, path.stem, path, True, f"found in the cache; no compiler here ({where})", 0.0
    )


def _link_for_any_compiler(units: Sequence[Unit], path: Path) -> None:
    """Adds a second name for the entry, without the compiler in its key."""
    other = path.with_name(f"{key_of(units, None)}.so")
    # a file system without hard links: the second name is a convenience
    with contextlib.suppress(OSError):
        other.unlink(missing_ok=True)
        os.link(path, other)


def load_binary(data: bytes, *, name: str) -> Library:
    """Loads the bytes of `Library.read_binary`, from this process or another; no compiler is
    needed.

    Raises BackendError (stage "load") if the bytes are damaged or were built for another processor.
    """
    damage = entries().check(data)
    if damage is not None:
        raise BackendError("inductor", "load", f"stored library {name!r}: {damage}")
    key = "b" + hashlib.sha256(data).hexdigest()[:39]
    with _loaded_lock:
        known = _loaded.get(key)
    if known is not None:
        return _as_hit(known, "already loaded in this process")

    def written(directory: Path, where: str) -> Library:
        path = directory / f"{key}.so"
        if entries().check_file(path) is not None:
            replace_file(path, data)
        return _load(name, key, path, True, f"loaded from stored bytes ({where})", 0.0)

    return _in_a_folder(written)


def forget_loaded() -> None:
    """Drops the in-process table (not the mapped libraries: compiled code may still be running)."""
    with _loaded_lock:
        _loaded.clear()


def _linked(units: Sequence[Unit], tools: Toolchain, directory: Path, name: str) -> bytes:
    """Returns the shared library of these units."""
    objects = compiled(units, tools, directory, name)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as folder:
        files = []
        for number, data in enumerate(objects):
            files.append(Path(folder) / f"{number}.o")
            files[-1].write_bytes(data)
        target = Path(folder) / "out.so"
        run_compiler(
            [tools.path, *map(str, files), "-o", str(target), *tools.link_flags], name, Path(folder)
        )
        return target.read_bytes()


# ---- loading


def _load(name: str, key: str, path: Path, hit: bool, reason: str, seconds: float) -> Library:
    handle = ctypes.CDLL(str(path))
    library = Library(name, key, path, hit, reason, seconds, handle)
    note("cache", "library of %s: %s: %s", name, "hit" if hit else "miss", reason)
    with _loaded_lock:
        _loaded[key] = library
    return library


def _as_hit(library: Library, reason: str) -> Library:
    note("cache", "library of %s: hit: %s", library.name, reason)
    return Library(library.name, library.key, library.path, True, reason, 0.0, library.handle)
