"""Builds and loads the C files in this folder, which are called through ctypes.

A library is built once and kept in the cache folder, under a name derived from its source. It is
loaded only if the store accepts it; a rejected one is rebuilt. Without a C compiler, or
when C is disabled, callers use the equivalent Python code.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from tracer_core.debug.logs import logger, note
from tracer_core.engine_support.compilers import Command, compilers
from tracer_core.options import env
from tracer_core.storage.cache_location import CacheLocationError, demand_room
from tracer_core.storage.store import Folder, Store

#: The C files are compiled for any processor of an architecture.
_STORE = Store(
    "guards", hashlib.sha256(f"{sys.platform} {platform.machine()}".encode()).hexdigest()[:16]
)


def helper(source: str, name: str, arguments: list[Any]) -> Any:
    """Returns a C function that returns an int or nothing, or None if it is missing or disabled
    (TRACER_PYTHON_GUARDS=1).
    """
    loaded = None if env().python_guards else library(source)
    if loaded is None:
        return None
    function = getattr(loaded, name)
    function.argtypes, function.restype = arguments, ctypes.c_int
    return function


@functools.cache
def library(name: str) -> Any:
    """Returns the loaded library of a C file, or None if it can be neither found nor built."""
    source = Path(__file__).with_name(f"{name}.c")
    result = compilers(os.environ.get("CC", ""), ("cc", "gcc", "clang"), "cc")
    compiler = next((command for command in result if command.exists), None)
    key = hashlib.sha256(f"{_STORE.machine}\n".encode() + source.read_bytes()).hexdigest()[:16]
    try:
        return _STORE.inside(lambda folder: _loaded(folder, f"{name}_{key}.so", source, compiler))
    except (CacheLocationError, subprocess.SubprocessError) as error:
        logger().warning("guards are checked in Python, which takes longer: %s", error)
    return None


def _loaded(folder: Folder, key: str, source: Path, compiler: Command | None) -> Any:
    path, problem = folder.find(key)
    state = "hit" if problem is None else f"miss: {problem}"
    note("cache", "guards' helper %s: %s (%s)", source.name, state, path)
    if problem is None:
        return _load(path)
    if compiler is None:
        return None
    return folder.write(key, _built(compiler, source, folder), _load)


def _load(path: Path) -> ctypes.PyDLL:
    return ctypes.PyDLL(str(path))


def _built(compiler: Command, source: Path, folder: Folder) -> bytes:
    with folder.scratch() as scratch:
        result = scratch / "out.so"
        command = [*compiler.argv, "-O2", "-shared", "-fPIC", "-o", str(result), str(source)]
        try:
            done = compiler.run(command, timeout=60, TMPDIR=str(scratch))
        except OSError as error:
            raise subprocess.SubprocessError(f"{compiler.argv[0]}: {error}") from error
        if done.returncode:
            demand_room(folder.path)
            done.check_returncode()
        return result.read_bytes()
