"""NumPy's types and functions as tuples, which are empty if NumPy is not installed.

torch imports NumPy anyway, so this import is free. Every type in `SCALARS` is immutable, and its
repr is its whole value.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any

try:
    import numpy
except ImportError:  # optional: the core runs without it
    numpy = None  # type: ignore[assignment]

#: NumPy scalars: np.float32(3), np.int64(2), ...
SCALARS: frozenset[type] = frozenset()
#: (np.ndarray,), (np.dtype,)
ARRAY: tuple[type, ...] = ()
DTYPE: tuple[type, ...] = ()
#: Types of NumPy's functions: ufuncs, and functions that support ``__array_function__``.
FUNCTIONS: tuple[type, ...] = ()
#: C functions that make arrays of plain data; methods of arrays and scalars.
MAKERS: tuple[Any, ...] = ()
METHODS: tuple[Any, ...] = ()
#: Names of functions and methods with side effects, or that depend on print options.
_OUTSIDE = """
    save savez savez_compressed savetxt array2string array_repr array_str tofile dump dumps genfromtxt loadtxt load
    fromfile fromregex set_printoptions get_printoptions printoptions seterr geterr seterrcall geterrcall setbufsize
    show_config show_runtime info get_include test empty empty_like
"""
OUTSIDE = frozenset(_OUTSIDE.split())
#: The type of Cython functions, as in NumPy's random module.
CYTHON: tuple[type, ...] = ()
#: NumPy modules with hidden state.
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
    """Returns a context in which NumPy raises where it would warn."""
    return contextlib.nullcontext() if numpy is None else numpy.errstate(all="raise")
