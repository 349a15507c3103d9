"""Compiles C++ text to a loaded library, through a disk cache that many processes share.

An entry of the store is one library, which is loaded before others see it, so that what no loader
takes is not kept. Its bytes can be stored elsewhere and loaded by another process without a
compiler. The key covers the texts, the prelude, compiler version, flags and the processor's
features.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from inductor_backend.runtime.cpp.launch import Image, launcher, opened
from inductor_backend.runtime.cpp.objects import LAUNCHER, Unit, compiled, key_of, run_compiler
from inductor_backend.runtime.cpp.toolchain import Toolchain, find_compiler
from inductor_backend.runtime.kernel_cache import libraries
from tracer_core.plugin_api import (
    BackendError,
    CacheLocationError,
    CompilerMissingError,
    Folder,
    note,
    packed,
    unpacked,
)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Library:
    """A loaded shared library."""

    #: The name for messages.
    name: str
    #: Content digest.
    key: str
    #: Its file.
    path: Path
    #: True if no compiler ran.
    hit: bool
    #: Why it was a hit or a miss, for logs.
    reason: str
    #: Build time.
    seconds: float
    #: Its mapping into memory, which lasts until this object and each callable from `function` are
    #: gone; an address from `address` keeps nothing.
    image: Image = field(repr=False, compare=False)

    def address(self, function: str) -> int:
        """Returns the address of an exported function. Raises BackendError if the library lacks it."""
        address = self.image.address(function)
        if address is None:
            detail = f"library {self.name!r} ({self.path}) exports no function {function!r}"
            raise BackendError("inductor", "load", detail)
        return address

    def function(self, name: str, nargs: int, fails: bool = True) -> Callable[..., None]:
        """Returns a callable for ``TC_EXPORT void name(const int64_t* a)`` taking `nargs` tensors
        or ints.

        A tensor is passed as its data pointer. The GIL is released during the call. What a kernel
        reports by ``tc_fail`` is raised: IndexError for a bad index, RuntimeError for an integer
        division by zero. fails: whether a kernel of this function may report an error."""
        # a library built without the prelude has no error flag
        error = (self.image.address("tc_error") or 0) if fails else 0
        return launcher(self.image, self.address(name), nargs, name, error, keep_alive=self)

    def read_binary(self) -> bytes:
        """Returns the library as bytes, for `load_binary` in another process on the same kind of
        processor. Raises BackendError if its file is gone or was changed."""
        store = libraries()
        image = Folder(store, self.path.parent).read(self.path.name)
        if image is None:
            detail = f"library {self.name!r}: {self.path} is gone, or was changed"
            raise BackendError("inductor", "save", detail)
        return packed(image, store.machine)


Made = TypeVar("Made")

#: The libraries that something uses, by their keys.
_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
_loaded_lock = threading.Lock()


def _new_process() -> None:
    global _loaded_lock
    _loaded_lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_new_process)


def build(sources: Sequence[str | Unit], *, name: str) -> Library:
    """Compiles, links, caches and loads `sources`, one translation unit each.

    Raises CompilerMissingError, also where nothing can be written, or BackendError with stage
    "c++ compile" (with the compiler's first lines and the path of the kept source).
    """
    units = [source if isinstance(source, Unit) else Unit(source) for source in sources]
    try:
        tools = find_compiler()
    except CompilerMissingError:
        stored = in_a_folder(lambda folder: _built_by_any_compiler(units, name, folder))
        if stored is None:
            raise
        return stored
    key = key_of(units, tools)
    with _loaded_lock:
        known = _loaded.get(key)
    if known is not None:
        return _as_hit(known, "already loaded in this process")
    return in_a_folder(lambda folder: _found_or_built(units, tools, key, name, folder))


def in_a_folder(make: Callable[[Folder], Made]) -> Made:
    """Returns make(the store's folder), or with a temporary one if files cannot be written or loaded
    there. Raises CompilerMissingError where there is no such folder."""
    try:
        return libraries().inside(make)
    except CacheLocationError as error:
        raise CompilerMissingError("inductor", "load", str(error)) from error


def _found_or_built(
    units: Sequence[Unit], tools: Toolchain, key: str, name: str, folder: Folder
) -> Library:
    with folder.building(key):
        path, damage = folder.find(f"{key}.so")
        if damage is None:
            reason = f"found in the cache ({folder.name})"
            try:
                return _known(Library(name, key, path, True, reason, 0.0, _opened(path)))
            except BackendError as error:  # a library that it needs is gone
                damage = error.detail
        started = time.perf_counter()
        with folder.scratch() as scratch:
            more = tools.link_flags
            image = link([*units, LAUNCHER], tools, folder, name, scratch, more).read_bytes()
        loaded = folder.write(path.name, image, _opened)
        folder.write(_for_any_compiler(units), key.encode())
        seconds = time.perf_counter() - started
    reason = f"compiled in {seconds:.2f} s: {damage} ({folder.name})"
    return _known(Library(name, key, path, False, reason, seconds, loaded))


def _built_by_any_compiler(units: Sequence[Unit], name: str, folder: Folder) -> Library | None:
    """Returns the entry that any compiler made of these texts here before, for machines that have
    lost their compiler."""
    key = folder.read(_for_any_compiler(units))
    path, damage = (None, "") if key is None else folder.find(f"{key.decode()}.so")
    if path is None or damage is not None:
        return None
    reason = f"found in the cache; no compiler here ({folder.name})"
    return _known(Library(name, path.stem, path, True, reason, 0.0, _opened(path)))


def _for_any_compiler(units: Sequence[Unit]) -> str:
    """Returns the key under which the key of the last library of these texts is kept."""
    return f"{key_of(units, None)}.any"


def load_binary(data: bytes, *, name: str) -> Library:
    """Loads the bytes of `Library.read_binary`, from this process or another; no compiler is
    needed.

    Raises BackendError (stage "load") if the bytes are damaged or were built for another processor.
    """
    image, damage = unpacked(data, libraries().machine)
    if image is None:
        raise BackendError("inductor", "load", f"stored library {name!r}: {damage}")
    key = "b" + hashlib.sha256(data).hexdigest()[:39]
    with _loaded_lock:
        known = _loaded.get(key)
    if known is not None:
        return _as_hit(known, "already loaded in this process")

    def written(folder: Folder) -> Library:
        path, missing = folder.find(f"{key}.so")
        loaded = _opened(path) if missing is None else folder.write(path.name, image, _opened)
        reason = f"loaded from stored bytes ({folder.name})"
        return _known(Library(name, key, path, True, reason, 0.0, loaded))

    return in_a_folder(written)


def forget_loaded() -> None:
    """Drops the in-process table. What compiled code refers to stays mapped."""
    with _loaded_lock:
        _loaded.clear()


def link(
    units: Sequence[Unit],
    tools: Toolchain,
    folder: Folder,
    name: str,
    scratch: Path,
    more: Sequence[str],
) -> Path:
    """Makes a shared library of these units in the folder `scratch`, and returns its path. more:
    arguments of the linker."""
    files = []
    for number, data in enumerate(compiled(units, tools, folder, name)):
        files.append(scratch / f"{number}.o")
        files[-1].write_bytes(data)
    target = scratch / "out.so"
    command = [*tools.command.linker, *map(str, files), "-o", str(target), *more]
    run_compiler(command, tools, name, scratch)
    return target


# ---- loading


def _opened(path: Path) -> Image:
    """Raises OSError where nothing can be loaded from the folder, BackendError for a file that is no
    library."""
    try:
        return opened(path)
    except OSError as error:
        if os.statvfs(path).f_flag & os.ST_NOEXEC:
            raise
        raise BackendError("inductor", "load", f"what the linker made: {error}") from error


def _known(library: Library) -> Library:
    """Puts the library into the in-process table."""
    hit = "hit" if library.hit else "miss"
    note("cache", "library of %s: %s: %s", library.name, hit, library.reason)
    with _loaded_lock:
        _loaded[library.key] = library
    return library


def _as_hit(library: Library, reason: str) -> Library:
    return _known(
        Library(library.name, library.key, library.path, True, reason, 0.0, library.image)
    )
