"""The C helper of stamps: builds it once and calls it.

In: `Words`. Out: a `NativeCheck`, or None where there is no C compiler. What always holds: it says what
`GatherCheck` says of the same words.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tracer_core.guards.layout import word
from tracer_core.guards.words import Words
from tracer_core.options import env


class _Stamp(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int64 * 3), ("words", ctypes.c_void_p), ("values", ctypes.c_void_p)]


@functools.cache
def _library() -> Any:
    """The helper, or None if it cannot be used here."""
    path = _build("stamp_check")
    if path is None:
        return None
    library = ctypes.PyDLL(str(path))
    library.stamp_holds.argtypes = [ctypes.c_void_p]
    library.stamp_take.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    library.stamp_holds.restype, library.stamp_take.restype = ctypes.c_int, None
    return library


@functools.cache
def _function(source: str, name: str) -> Any:
    path = _build(source)
    return None if path is None else getattr(ctypes.PyDLL(str(path)), name)


def helper(source: str, name: str, arguments: list[Any]) -> Any:
    """A function of one of the C files here that returns an int, or None if it is missing or not wanted
    (TRACER_PYTHON_GUARDS=1)."""
    function = None if env().python_guards else _function(source, name)
    if function is not None:
        function.argtypes, function.restype = arguments, ctypes.c_int
    return function


def _build(name: str) -> Path | None:
    """The shared library of a C file, from the cache or from the C compiler."""
    source = Path(__file__).with_name(f"{name}.c")
    text = source.read_bytes()
    folder = Path(env().cache_dir) / "stamp"
    target = folder / f"{name}_{hashlib.sha256(text).hexdigest()[:16]}.so"
    if target.exists():
        return target
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".so", delete=False) as file:
            temporary = file.name
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", temporary, str(source)], check=True,
                       capture_output=True, timeout=60)  # fmt: skip
        os.replace(temporary, target)
    except (OSError, subprocess.SubprocessError):
        return None  # the Python form of the check has the same meaning
    return target


class NativeCheck:
    """Whether the words are as they were, in C: holds()."""

    def __init__(self, library: Any, words: Words) -> None:
        addresses = [address for depth in words.depths for address in depth]
        self._words = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        self._values = (ctypes.c_uint64 * max(1, len(addresses)))()
        counts = (ctypes.c_int64 * 3)(*map(len, words.depths))
        self._stamp = _Stamp(counts, ctypes.addressof(self._words), ctypes.addressof(self._values))
        self.holds = functools.partial(library.stamp_holds, ctypes.addressof(self._stamp))
        library.stamp_take(ctypes.addressof(self._stamp), 0, len(addresses))

    def moved(self, addresses: list[int]) -> list[bool]:
        """Whether each of these words (of depth 0) changed."""
        before = dict(zip(self._words, self._values, strict=True))
        return [word(address) != before[address] for address in addresses]


def native_check(words: Words) -> NativeCheck | None:
    """A check in C, or None if the helper is missing or not wanted (TRACER_PYTHON_GUARDS=1)."""
    if env().python_guards:
        return None
    library = _library()
    return None if library is None else NativeCheck(library, words)
