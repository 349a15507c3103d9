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
stored library runs where there is no compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


class _Record(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("nargs", ctypes.c_ssize_t),
        ("error", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


def launcher(
    make: Any, address: int, nargs: int, name: str, error: int, keep_alive: object
) -> Callable[..., None]:
    """Returns a callable of exactly `nargs` tensors or ints for the function at `address`.

    It raises TypeError on a wrong number of arguments, AttributeError on an argument that is
    neither an int nor has ``data_ptr()``, OverflowError on an int beyond 64 bits, and what the
    kernel reported in the two ints at address `error` (see ``tc_fail``; 0: its kernels report
    nothing). make: the library's own ``tc_launcher``. keep_alive: the library."""
    record = _Record(address, nargs, error, name.encode()[:63])
    launch: Callable[..., None] = make((bytes(record), keep_alive), int)
    return launch


def maker(library: ctypes.CDLL) -> Any:
    """Returns the library's ``tc_launcher``. The GIL is held while it runs: it makes a Python
    object."""
    make = ctypes.PyDLL(library._name, handle=library._handle).tc_launcher
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object, ctypes.py_object)
    return make
