"""Counts the changes of dictionaries that carry no version tag (CPython 3.13 and later).

A dictionary watcher is a function in C that CPython calls before each change of a watched
dictionary. Ours adds one to the dictionary's counter, a word of memory that the guard cache
compares like the others. The death of a dictionary is a change, and the counter outlives it.
"""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Sequence
from typing import Any

from tracer_core.guards.native_helper import library
from tracer_core.guards.object_layout import renews
from tracer_core.options import env

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class DictCounters:
    """Holds a counter for each dictionary; CPython counts there as long as this object lives.

    addresses: of the counters, in the order of the dictionaries.
    """

    def __init__(self, dicts: Sequence[dict[Any, Any]], hold: Any, release: Any) -> None:
        self._release, self._count = release, 0
        count = len(dicts)
        self._held = (_POINTER * count)()
        self._count = hold(count, (_POINTER * count)(*map(id, dicts)), self._held)
        if self._count < count:
            raise MemoryError("no memory for the counters of dictionaries")
        self.addresses: list[int] = list(self._held)

    def __del__(self) -> None:
        self._release(self._count, self._held)


@functools.cache
def _functions() -> tuple[Any, Any] | None:
    """Returns (hold, release) after the watcher has been registered, or None if it cannot be."""
    api: Any = ctypes.pythonapi
    loaded = library("dict_counters")
    if loaded is None or not hasattr(api, "PyDict_AddWatcher"):
        return None
    add = api.PyDict_AddWatcher
    add.argtypes, add.restype = [_POINTER], ctypes.c_int
    try:
        watcher = add(ctypes.cast(loaded.dict_counters_event, _POINTER))
    except RuntimeError:  # an interpreter has eight, and other libraries have them all
        return None
    begin, hold, release = (
        getattr(loaded, f"dict_counters_{name}") for name in ("begin", "hold", "release")
    )
    begin.argtypes = [_POINTER, _POINTER, ctypes.c_int]
    hold.argtypes, release.argtypes = [_SIZE, _POINTER, _POINTER], [_SIZE, _POINTER]
    begin(
        *(ctypes.cast(value, _POINTER) for value in (api.PyDict_Watch, api.PyDict_Unwatch)), watcher
    )
    functions = hold, release
    return functions if all(map(functools.partial(_is_counted, functions), _PROBES)) else None


class _Slotless:
    pass


#: Objects whose attributes CPython keeps in a dictionary, and beside the object.
_PROBES = (types.SimpleNamespace, _Slotless)


def _is_counted(functions: tuple[Any, Any], kind: type) -> bool:
    probe = kind()
    counters = DictCounters([probe.__dict__], *functions)
    return renews(probe, counters.addresses[0])


def can_count() -> bool:
    """Whether changes of dictionaries can be counted: not without a C compiler, nor under
    TRACER_PYTHON_GUARDS=1."""
    return not env().python_guards and _functions() is not None


def count_changes(dicts: Sequence[dict[Any, Any]]) -> DictCounters:
    """Returns counters of the changes of dictionaries from now on, where `can_count`."""
    functions = _functions()
    assert functions is not None
    return DictCounters(dicts, *functions)
