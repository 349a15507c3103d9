"""The death of objects: whether the program can observe it, and which objects a dead variable goes
on holding."""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import gc
import itertools
import re
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.guards.numpy_types import ARRAY, SCALARS
from tracer_core.guards.object_layout import (
    HEAP_TYPE,
    IMMUTABLE_TYPE,
    flags,
    mro,
    namespace,
    weak_reference_offset,
)
from tracer_core.guards.own_reference import is_watched
from tracer_core.guards.value_kinds import CONSTANT_TYPES
from tracer_core.limits import MAX_HELD_ITEMS

BOUND_TYPES = (types.BuiltinFunctionType, types.MethodWrapperType)

#: Long-lived objects; weak references to them are bookkeeping that the program does not see.
_LONG_LIVED = (
    type, torch.Tensor, torch.nn.Module, BaseException, types.ModuleType, types.CodeType,
)  # fmt: skip

#: Generator object -> its continuation generator (trace/generator_continuations.py).
CONTINUATIONS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

#: Where the exceptions of a generator go that is not inside ``try`` or ``with``: CPython 3.12 and
#: later convert a StopIteration that leaves it, and end the ``yield from`` that it stands at.
_WITHOUT_TRY = frozenset(map(dis.opmap.get, ("CALL_INTRINSIC_1", "CLEANUP_THROW")))


def has_handlers(raw: types.CodeType) -> bool:
    """Returns whether a generator function has ``try`` or ``with`` statements."""
    entries = dis._parse_exception_table(raw)  # type: ignore[attr-defined]
    return any(raw.co_code[entry.target] not in _WITHOUT_TRY for entry in entries)


def end_is_seen(value: Any, depth: int = 3) -> bool:
    """Returns whether the program can observe an object's death: it has ``__del__``, is weakly
    referenced, is a generator that may be inside ``try`` or holds such an object, a weak reference
    with a callback, or a memoryview, which keeps its buffer from being resized. The tracer must not
    keep such an object alive. depth: how deep generators and containers are looked into."""
    if type(value) is memoryview:
        return True
    if type(value) is types.GeneratorType:
        continuation = CONTINUATIONS.get(value)
        if continuation is not None:
            return continuation.acts_when_closed() or holds_watched(continuation.values, depth)
        return value.gi_frame is not None and (
            has_handlers(value.gi_code) or holds_watched(gc.get_referents(value), depth)
        )
    if type(value) is weakref.ReferenceType:
        return value.__callback__ is not None
    if issubclass(type(value), _LONG_LIVED):
        return False
    if not flags(type(value)) & HEAP_TYPE:
        return bool(weak_reference_offset(type(value))) and is_watched(value)
    return any("__del__" in namespace(owner) for owner in mro(type(value))) or is_watched(value)


def can_be_watched(value: Any) -> bool:
    """Returns whether the program could make a weak reference to an object."""
    return bool(weak_reference_offset(type(value))) and not issubclass(type(value), _LONG_LIVED)


def must_outlive_variable(value: Any) -> bool:
    """Returns whether a dead variable must go on holding this object, as in eager, because the
    program has or may later make a weak reference to it, because it is one, whose callback is
    called only while it lives, or because its death does something (it closes a file)."""
    kind = type(value)
    if issubclass(kind, (*_REFERENCES, type)):
        return is_known_to_another(value)
    if kind in _HOLDERS:
        if _holds(value, lambda held, left: _outlives_within(held) or end_is_seen(held, left)):
            return True
    elif leads_to_foreign(value):
        return True
    if kind in _ENDS_UNSEEN or issubclass(kind, _LONG_LIVED):
        return end_is_seen(value)
    return True


def leads_to_foreign(value: Any) -> bool:
    """Returns whether a plain container, an iterator or a bound method holds an object of a type of
    C that is not known to end unseen, such as an open file."""
    kind = type(value)
    if kind in BOUND_TYPES:
        return is_bound(value.__self__) and _is_foreign(value.__self__)
    return kind in _HOLDERS and _holds(value, lambda held, left: _outlives_within(held))


def _outlives_within(held: Any) -> bool:
    """Returns whether a container is kept for what it holds here."""
    return leads_to_foreign(held) or _is_foreign(held)


def _is_foreign(value: Any) -> bool:
    """Returns whether an object is of a type of C that is not known to end unseen."""
    kind = type(value)
    if kind in _ENDS_UNSEEN or issubclass(kind, _LONG_LIVED):
        return False
    made_by_python = flags(kind) & HEAP_TYPE and not flags(kind) & IMMUTABLE_TYPE
    return not (made_by_python and weak_reference_offset(kind))


def is_known_to_another(value: Any) -> bool:
    """Returns whether another object tells of this one: the referent of a weak reference, a base of
    a class."""
    if issubclass(type(value), _REFERENCES):
        return True
    if not issubclass(type(value), type):
        return False
    bases = type.__dict__["__bases__"].__get__(value)
    return any(flags(base) & HEAP_TYPE for base in bases)


def holds_watched(container: Any, depth: int = 4) -> bool:
    """Returns whether a plain container, or an iterator, holds an object whose death the program can
    observe."""
    return _holds(container, end_is_seen, depth)


def _holds(container: Any, counts: Callable[[Any, int], bool], depth: int = 4) -> bool:
    """Returns whether a container or an iterator holds an object for which counts(object, depth that
    is left), in containers of its own too."""
    if depth == 0:
        return False
    held = list(itertools.islice(_held_by(container), MAX_HELD_ITEMS + 1))
    if len(held) > MAX_HELD_ITEMS:
        crossed("MAX_HELD_ITEMS")
    return any(
        _holds(item, counts, depth - 1) if type(item) in _HOLDERS else counts(item, depth - 1)
        for item in held[:MAX_HELD_ITEMS]
    )


def _held_by(container: Any) -> Iterable[Any]:
    """Returns what a plain container or an iterator holds."""
    kind = type(container)
    if kind not in _ITERATORS:
        values: Iterable[Any] = dict.values(container) if kind is dict else container
        return values
    # the tuple inside a zip_longest has holes, which must not be read as a tuple's items
    held = gc.get_referents(container)
    inner = [item for item in held if type(item) is tuple]
    return [item for item in held if type(item) is not tuple] + gc.get_referents(*inner)


#: Iterators that hold others.
_ITERATORS = frozenset(
    {zip, map, filter, enumerate, type(iter([])), type(iter(()))}
    | {kind for kind in vars(itertools).values() if isinstance(kind, type)}
)

#: Types of C whose instances hold nothing outside of Python: no file, no memory of another object.
#: An instance of a type that is not known stays with a dead variable.
_ENDS_UNSEEN = frozenset(
    {kind for space in (builtins, types, itertools) for kind in vars(space).values()
     if isinstance(kind, type) and not issubclass(kind, BaseException)}
    | {type(iter(kind())) for kind in (list, tuple, dict, set, str, bytes, bytearray)}
    | {type(iter(range(1))), type(reversed([])), type(iter({}.items())), type(iter({}.values()))}
    | CONSTANT_TYPES | SCALARS
    | {*ARRAY, functools.partial, collections.deque, collections.defaultdict,
       collections.OrderedDict, re.Match}
)  # fmt: skip

_HOLDERS = _ITERATORS | {list, tuple, dict, set, frozenset, collections.deque}

_REFERENCES: tuple[Any, ...] = (weakref.ReferenceType, *weakref.ProxyTypes)


def is_bound(receiver: Any) -> bool:
    """Returns whether a C function's `__self__` is the program's object (pybind11 stores its own
    record there)."""
    if isinstance(receiver, (types.ModuleType, type, types.NoneType)):
        return False
    return not type(receiver).__module__.startswith("pybind11")
