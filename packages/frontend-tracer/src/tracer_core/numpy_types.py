"""NumPy's types, where NumPy is installed: torch imports it, so this costs nothing.

In: nothing. Out: `SCALARS` and `ARRAY`, empty without NumPy. What always holds: every type in `SCALARS` is immutable
and its text says all that it holds.
"""

from __future__ import annotations

from typing import Any

try:
    import numpy
except ImportError:  # optional: the core runs without it
    numpy = None  # type: ignore[assignment]

#: Numbers of NumPy: np.float32(3), np.int64(2), ...
SCALARS: frozenset[type] = frozenset()
#: (np.ndarray,)
ARRAY: tuple[type, ...] = ()
_NO_NUMBERS = ("void", "object_", "str_", "bytes_", "record", "datetime64", "timedelta64")

if numpy is not None:
    _concrete: list[Any] = [kind for kind in vars(numpy).values() if isinstance(kind, type)]
    SCALARS = frozenset(
        kind
        for kind in _concrete
        if issubclass(kind, numpy.generic) and not kind.__subclasses__() and kind.__name__ not in _NO_NUMBERS
    )
    ARRAY = (numpy.ndarray,)
