"""Calls a C function ``void f(const int64_t* a)`` from Python with the least overhead.

The callable takes exactly the stated number of tensors (their data pointer is passed) and ints,
converts them without loss, and releases the GIL while f runs.

Measured on the 2-core AVX-512 machine (Python 3.11, three tensors and an int, ns a call in all):
    this launcher, tensors passed                                               285
    this launcher, addresses passed as ints                                     110
    ctypes, one address, the array packed by struct.pack_into                   500
    CFUNCTYPE object, the same                                                  510
    ctypes with argtypes (c_void_p, ..., c_int64), data_ptr() called in Python  590
It is codegen/cpp/launcher.cpp, compiled once per machine and linked into every library, so that a
stored library runs where there is no compiler. The first library that a process loads stays mapped,
and serves all others: CPython reads a launcher's method table until the launcher is freed, which may
be after its kernel's library was unmapped.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class _Record(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("nargs", ctypes.c_ssize_t),
        ("error", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


@dataclass(frozen=True, slots=True)
class _Bridge:
    """launcher.cpp of the library that stays mapped. The GIL is held while these run: they make
    Python objects."""

    #: ``tc_launcher``.
    launcher: Any
    #: ``tc_mapping``.
    mapping: Any


@dataclass(frozen=True, slots=True)
class Image:
    """A shared library in memory.

    The garbage collector frees the objects of a cycle in any order, so each launcher refers to the
    mapping by itself, and the mapping is a capsule, which is freed by its reference count alone. No
    kernel of the library runs then, because who calls a launcher refers to it; nor do threads of
    OpenMP, because a kernel's parallel regions end before it returns.
    """

    #: Dlopen's.
    handle: int
    #: What unmaps the library when the last reference to it goes away; None: the library that
    #: stays.
    mapping: object

    def address(self, name: str) -> int | None:
        """Returns the address of an exported symbol, or None."""
        try:
            return _ctypes.dlsym(self.handle, name)
        except OSError:
            return None


_bridge: _Bridge | None = None
_bridge_lock = threading.Lock()


def _new_process() -> None:
    global _bridge_lock
    _bridge_lock = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_new_process)


def opened(path: Path) -> Image:
    """Loads a shared library. Raises OSError with the loader's words."""
    global _bridge
    handle = _ctypes.dlopen(os.fspath(path), ctypes.DEFAULT_MODE)
    with _bridge_lock:
        if _bridge is None:
            objects = (ctypes.py_object, ctypes.py_object, ctypes.py_object)
            addresses = (ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
            _bridge = _Bridge(
                ctypes.PYFUNCTYPE(*objects)(_ctypes.dlsym(handle, "tc_launcher")),
                ctypes.PYFUNCTYPE(*addresses)(_ctypes.dlsym(handle, "tc_mapping")),
            )
            return Image(handle, None)
    return Image(handle, _bridge.mapping(handle, _dlclose()))


@functools.cache
def _dlclose() -> int | None:
    """Returns the address of dlclose."""
    return ctypes.cast(ctypes.CDLL(None).dlclose, ctypes.c_void_p).value


def launcher(
    image: Image, address: int, nargs: int, name: str, error: int, keep_alive: object
) -> Callable[..., None]:
    """Returns a callable of exactly `nargs` tensors or ints for the function at `address` in `image`.

    It raises TypeError on a wrong number of arguments, AttributeError on an argument that is
    neither an int nor has ``data_ptr()``, OverflowError on an int beyond 64 bits, and what the
    kernel reported in the two ints at address `error` (see ``tc_fail``; 0: its kernels report
    nothing). keep_alive: what lives as long as the callable."""
    record = _Record(address, nargs, error, name.encode()[:63])
    assert _bridge is not None  # of `opened`
    launch: Callable[..., None] = _bridge.launcher((bytes(record), image.mapping, keep_alive), int)
    return launch
