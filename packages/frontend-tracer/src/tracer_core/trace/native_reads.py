"""Guards the values that native code may read, and breaks where reading them would run user code.

After `read_values`, native code that compares, hashes or adds these values runs no Python method of
the program and reads no unguarded state.
"""

from __future__ import annotations

import array
import collections
import enum
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.guards.value_kinds import IDENTITY_TYPES, is_constant
from tracer_core.limits import MAX_READ_DEPTH

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: Special methods that native code does not call when it only reads a value.
_NEVER_CALLED = frozenset(
    {
        "__init__", "__new__", "__init_subclass__", "__set_name__", "__class_getitem__",
        "__post_init__", "__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
        "__copy__", "__deepcopy__", "__dir__", "__enter__", "__exit__", "__call__", "__sizeof__",
        "__subclasshook__", "__setattr__", "__delattr__", "__getnewargs__", "__getnewargs_ex__",
        "__instancecheck__", "__subclasscheck__", "__replace__", "__repr__", "__str__",
        "__format__",
    }  # trace/special_methods.py knows what prints
)  # fmt: skip


def special_methods(tracer: Tracer, cls: type) -> frozenset[str]:
    """Returns the Python special methods of a class that native code might call."""
    known: frozenset[str] | None = tracer.entries.methods_of.get(cls)
    if known is None:
        known = tracer.entries.methods_of[cls] = _special_methods(cls)
    return known


def _special_methods(cls: type) -> frozenset[str]:
    return frozenset(
        name
        for owner in cls.__mro__
        for name, value in owner.__dict__.items()
        if name.startswith("__")
        and name.endswith("__")
        and name not in _NEVER_CALLED
        and isinstance(value, (types.FunctionType, property, classmethod, staticmethod))
    )


def read_values(tracer: Tracer, *values: Any) -> bool:
    """Guards values that native code reads, at every depth. Returns True if they contain a tensor."""
    tracer.native_calls.native_reads(*values)
    return _check_all(tracer, values, MAX_READ_DEPTH)


def runs_no_user_code(tracer: Tracer, value: Any, depth: int = MAX_READ_DEPTH) -> bool:
    """Returns whether native code may compare or hash the value without running user code. False for
    tensors: the result of comparing them is unknown while tracing."""
    if is_constant(value):
        return True
    if isinstance(value, _CONTAINERS):
        if depth == 0:
            crossed("MAX_READ_DEPTH")
        return depth > 0 and not special_methods(tracer, type(value)) and all(
            runs_no_user_code(tracer, child, depth - 1) for child in children(value))  # fmt: skip
    return not isinstance(value, (torch.Tensor, *_SYMBOLIC)) and _is_inert(tracer, value)


def children(container: Any) -> list[Any]:
    """Returns the keys and values of a dictionary, the items of another container. No method that
    a subclass overrides is called."""
    if isinstance(container, dict):
        return [*dict.keys(container), *dict.values(container)]
    base = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    return list(base.__iter__(container))


def _is_inert(tracer: Tracer, value: Any) -> bool:
    """Returns whether native code can read no more than an object's identity."""
    if isinstance(value, enum.Enum):
        return not special_methods(tracer, type(value)) - _ENUM_OWN
    return isinstance(value, (*IDENTITY_TYPES, types.ModuleType)) or type(value) is object


_ENUM_OWN = _special_methods(enum.IntFlag)


def _check_all(tracer: Tracer, values: Iterable[Any], depth: int) -> bool:
    """Runs `_check` on every value, also after it found a tensor."""
    result = False
    for value in values:
        result |= _check(tracer, value, depth)
    return result


def _check(tracer: Tracer, value: Any, depth: int) -> bool:
    """Returns whether a value contains a tensor that native code reads; breaks for user code."""
    if is_constant(value) or isinstance(value, _SYMBOLIC):
        return False
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, _CONTAINERS) and depth > 0:
        if special_methods(tracer, type(value)):
            _refuse(tracer, value)
        return _check_all(tracer, children(value), depth - 1)
    if isinstance(value, _CONTAINERS):
        crossed("MAX_READ_DEPTH")
    if isinstance(value, slice):
        return _check_all(tracer, (value.start, value.stop, value.step), depth - 1)
    if isinstance(value, (str, bytes)) and not isinstance(value, enum.Enum):
        return False  # also a subclass: native code reads the string itself
    if isinstance(value, IDENTITY_TYPES) and not isinstance(value, enum.Enum):
        return False
    if special_methods(tracer, type(value)) and not (
        isinstance(value, enum.Enum) and _is_inert(tracer, value)
    ):
        _refuse(tracer, value)
    if isinstance(value, (bytearray, array.array)):
        tracer.reads.expand(value)
        return False
    if (
        not tracer.provenance.is_fresh(value)
        and not isinstance(value, enum.Enum)
        and type(value) is not object
    ):
        tracer.break_graph(
            "unsupported_value", f"native code reads the contents of a {type(value).__name__}"
        )
    return False


def _refuse(tracer: Tracer, value: Any) -> None:
    cls = type(value)
    tracer.break_graph(
        "unknown_native", f"native code is handed a {cls.__name__}, whose methods are Python code"
    )
