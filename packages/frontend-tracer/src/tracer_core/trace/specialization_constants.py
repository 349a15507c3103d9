"""Objects that are alike in every call of a cache entry: made of constants, of objects from before
the trace, whose identity is guarded, and of new objects that hold nothing else."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.guards.value_kinds import is_constant
from tracer_core.limits import MAX_SPECIALIZED_OBJECTS
from tracer_core.trace.guarded_calls import identity
from tracer_core.trace.native_reads import children
from tracer_core.trace.operators import CONTAINERS
from tracer_core.trace.symbolic_scalars import SYMBOLS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
#: View of keys -> its dictionary.
_KEYS: dict[type, Any] = {
    type(kind().keys()): kind for kind in (dict[Any, Any], collections.OrderedDict[Any, Any])
}
_COPIED = (tuple, list, set, frozenset, dict)

Make = Callable[[], Any]


def is_constant_code(tracer: Tracer, value: Any) -> bool:
    """Returns whether a value is a constant, or a class or function that no call makes anew."""
    if isinstance(value, type) and tracer.entries.made_class(value):
        return False
    if type(value) is types.FunctionType and tracer.names.made_here(value):
        return False
    return is_constant(value) or isinstance(value, CODE)


def is_specialization_constant(tracer: Tracer, value: Any) -> bool:
    """Returns whether a value is alike in every call; guards what that hangs on."""
    return maker(tracer, value) is not None


def maker(tracer: Tracer, value: Any) -> Make | None:
    """Returns what makes such a value anew, or None for any other value, and for one that holds an
    object twice."""
    return _maker(tracer, value, {})


def _maker(tracer: Tracer, value: Any, seen: dict[int, Any]) -> Make | None:
    """seen: id -> object, of those met so far."""
    if type(value) is slice:
        parts = _makers(tracer, (value.start, value.stop, value.step), seen)
        return None if parts is None else lambda: slice(*(make() for make in parts))
    if is_constant_code(tracer, value):
        return lambda: value
    if isinstance(value, (torch.Tensor, *SYMBOLS)):
        return None
    made_here = type(value) is types.FunctionType or tracer.provenance.is_fresh(value)
    if not made_here and type(value) not in _COPIED:
        if isinstance(value, (*CONTAINERS, *CODE)) or tracer.provenance.source_of(value) is None:
            return None
        identity(tracer, value)
        return lambda: value
    if id(value) in seen or len(seen) > MAX_SPECIALIZED_OBJECTS:
        if id(value) not in seen:
            crossed("MAX_SPECIALIZED_OBJECTS")
        return None
    seen[id(value)] = value
    if type(value) is types.FunctionType:
        return _maker_of_function(tracer, value, seen)
    if isinstance(value, CODE):
        return None
    if not made_here:
        tracer.reads.expand(value)
    if type(value) in _KEYS:
        like, keys = _KEYS[type(value)], _makers(tracer, tuple(value), seen)
        return None if keys is None else lambda: like.fromkeys([make() for make in keys]).keys()
    if isinstance(value, dict):
        return _maker_of_dict(tracer, value, seen)
    if type(value) in _COPIED:
        kind: Any = type(value)
        items = _makers(tracer, children(value), seen)
        return None if items is None else lambda: kind([make() for make in items])
    return _maker_of_object(tracer, value, seen)


def _maker_of_function(
    tracer: Tracer, function: types.FunctionType, seen: dict[int, Any]
) -> Make | None:
    """A function made in the trace, whose variables from outside and defaults are constant."""
    cells = [tracer.names.cell_contents(cell) for cell in function.__closure__ or ()]
    parts = _makers(tracer, (cells, function.__defaults__, function.__kwdefaults__), seen)
    if parts is None or vars(function):
        return None
    code, space, name = function.__code__, function.__globals__, function.__name__

    def make() -> Any:
        contents, defaults, named = (part() for part in parts)
        closure = tuple(types.CellType(value) for value in contents)
        result = types.FunctionType(code, space, name, defaults, closure)
        result.__kwdefaults__, result.__qualname__ = named, function.__qualname__
        return result

    return make


def _makers(tracer: Tracer, values: Any, seen: dict[int, Any]) -> list[Make] | None:
    result = [_maker(tracer, value, seen) for value in values]
    created = [make for make in result if make is not None]
    return created if len(created) == len(result) else None


def _maker_of_dict(tracer: Tracer, value: dict[Any, Any], seen: dict[int, Any]) -> Make | None:
    """A dictionary; one of a class in Python (frozendict), which may hold more, stays what it is."""
    kind: Any = type(value)
    keys = _makers(tracer, dict.keys(value), seen)
    values = _makers(tracer, dict.values(value), seen)
    if keys is None or values is None:
        return None
    if kind not in (dict, collections.OrderedDict):
        return (lambda: value) if kind.__flags__ & HEAP_TYPE else None
    return lambda: kind((k(), v()) for k, v in zip(keys, values, strict=True))


def _maker_of_object(tracer: Tracer, value: Any, seen: dict[int, Any]) -> Make | None:
    """A plain object of a class in Python, whose attributes are all in its dictionary."""
    cls: Any = type(value)
    slots = any(isinstance(entry, types.MemberDescriptorType)
                for base in cls.__mro__ for entry in vars(base).values())  # fmt: skip
    simple = cls.__flags__ & HEAP_TYPE and not slots and not tracer.entries.made_class(cls)
    if not simple or cls.__new__ is not object.__new__ or not cls.__dictoffset__:
        return None
    own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    values = _makers(tracer, own.values(), seen)
    if values is None:
        return None
    names = list(own)

    def make() -> Any:
        instance = object.__new__(cls)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(instance, name, value())
        return instance

    return make
