"""NumPy's types and functions, where NumPy is installed: torch imports it, so this costs nothing.

In: nothing. Out: tuples of types and functions, empty without NumPy. What always holds: every type
in `SCALARS` is immutable and its text says all that it holds.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

try:
    import numpy
except ImportError:  # optional: the core runs without it
    numpy = None  # type: ignore[assignment]

#: Numbers of NumPy: np.float32(3), np.int64(2), ...
SCALARS: frozenset[type] = frozenset()
#: (np.ndarray,), (np.dtype,)
ARRAY: tuple[type, ...] = ()
DTYPE: tuple[type, ...] = ()
#: Types of NumPy's functions: universal ones, and those that arrays of other libraries may
#: override.
FUNCTIONS: tuple[type, ...] = ()
#: Functions written in C that make arrays of plain data; methods of arrays and of NumPy's numbers.
MAKERS: tuple[Any, ...] = ()
METHODS: tuple[Any, ...] = ()
#: Names of functions and methods that reach outside, or read how numbers are printed.
_OUTSIDE = """
    save savez savez_compressed savetxt array2string array_repr array_str tofile dump dumps genfromtxt loadtxt load
    fromfile fromregex set_printoptions get_printoptions printoptions seterr geterr seterrcall geterrcall setbufsize
    show_config show_runtime info get_include test empty empty_like
"""
OUTSIDE = frozenset(_OUTSIDE.split())
#: The type of functions that Cython made: NumPy's random numbers.
CYTHON: tuple[type, ...] = ()
#: Modules of NumPy with hidden state.
NOT_PURE = ("numpy.random", "numpy.testing", "numpy.f2py", "numpy.ctypeslib", "numpy._pytesttester")
_NO_NUMBERS = ("void", "object_", "str_", "bytes_", "record", "datetime64", "timedelta64")
_NAMES = (
    "array arange zeros asarray ascontiguousarray concatenate dot inner where frombuffer fromiter"
    " lexsort can_cast"
)
_KINDS = (types.MethodDescriptorType, types.WrapperDescriptorType)

if numpy is not None:
    _concrete: list[Any] = [kind for kind in vars(numpy).values() if isinstance(kind, type)]
    SCALARS = frozenset(
        kind
        for kind in _concrete
        if issubclass(kind, numpy.generic)
        and not kind.__subclasses__()
        and kind.__name__ not in _NO_NUMBERS
    )
    ARRAY, DTYPE = (numpy.ndarray,), (numpy.dtype,)
    FUNCTIONS = tuple({type(f) for f in (numpy.sqrt, numpy.prod)} - {types.FunctionType})
    MAKERS = tuple(
        f
        for name in _NAMES.split()
        if isinstance(f := getattr(numpy, name, None), types.BuiltinFunctionType)
    )
    CYTHON = (type(numpy.random.Generator.random),)
    METHODS = tuple(
        method
        for owner in (
            numpy.ndarray,
            numpy.generic,
            *sorted(SCALARS, key=lambda kind: kind.__name__),
        )
        for name, method in vars(owner).items()
        if isinstance(method, _KINDS) and not name.startswith("__")
    )


def raising() -> Any:
    """A context in which NumPy raises where it would warn."""
    return contextlib.nullcontext() if numpy is None else numpy.errstate(all="raise")
