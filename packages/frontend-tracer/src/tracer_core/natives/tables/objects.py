"""Sequence methods that compare items, explicit special methods of containers, identities, and
exceptions."""

from __future__ import annotations

import collections
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.bytecode.template_strings import INTERPOLATION, TEMPLATE
from tracer_core.natives import queries
from tracer_core.natives.effects import (
    PURE,
    SHALLOW,
    declare,
    special,
    special_each,
)
from tracer_core.torch_private.names import classes
from tracer_core.trace import special_methods
from tracer_core.trace.tracer import Tracer

if sys.version_info >= (3, 14):
    declare(SHALLOW, [INTERPOLATION])

    @special(TEMPLATE)
    def template(tracer: Tracer, /, *parts: Any) -> Any:
        return tracer.native_calls.note_allocation(TEMPLATE(*parts))


def _equal_items(
    tracer: Tracer, container: Any, wanted: Any, start: int = 0, stop: int = sys.maxsize
) -> Iterator[int]:
    """Yields the position of each item within limits that equals `wanted`."""
    items = itertools.islice(special_methods.live_items(tracer, container), stop)
    for position, item in enumerate(items):
        if position >= start and special_methods.same_value(tracer, item, wanted):
            yield position


@special(list.count, tuple.count, collections.deque.count)
def count(tracer: Tracer, container: Any, wanted: Any) -> int:
    return sum(1 for _ in _equal_items(tracer, container, wanted))


def _said_of_none(container: Any) -> str:
    try:
        container.index(None)
    except ValueError as error:
        return str(error)
    raise AssertionError("an empty container has no items")


#: Type -> what its index() says of None, if that is missing. Some show what is missing (until 3.14).
_MISSES = {kind: _said_of_none(kind()) for kind in (list, tuple, collections.deque)}
_SHOWN = repr(None)


@special(list.index, tuple.index, collections.deque.index)
def index(
    tracer: Tracer, container: Any, wanted: Any, start: Any = 0, stop: Any = sys.maxsize
) -> int:
    if type(start) is not int or type(stop) is not int:
        tracer.break_graph("native_python", "index() within limits that are no plain integers")
    if start < 0 or stop < 0:
        size = tracer.reads.length(container)
        start, stop = (n if n >= 0 else max(0, size + n) for n in (start, stop))
    for position in _equal_items(tracer, container, wanted, start, min(stop, sys.maxsize)):
        return position
    said = next(text for kind, text in _MISSES.items() if isinstance(container, kind))
    if said.startswith(_SHOWN):
        said = special_methods.repr_of(tracer, wanted) + said.removeprefix(_SHOWN)
    raise ValueError(said)


@special(list.remove, collections.deque.remove)
def remove(tracer: Tracer, container: Any, wanted: Any) -> None:
    try:
        result = next(_equal_items(tracer, container, wanted), None)
    except RuntimeError as error:
        if tracer.exceptions.was_raised(error):
            raise
        raise IndexError(*error.args) from None  # as deque.remove() says it
    if result is not None:
        tracer.side_effects.before_change(container)
        # A comparison may have shortened the list.
        del container[slice(result, result + 1) if isinstance(container, list) else result]
        return
    if isinstance(container, list):
        raise ValueError("list.remove(x): x not in list")
    tracer.break_graph("native_python", "what is removed is not in the deque")


@special(list.__contains__, tuple.__contains__, collections.deque.__contains__)
def contains(tracer: Tracer, container: Any, wanted: Any) -> bool:
    return any(True for _ in _equal_items(tracer, container, wanted))


@special_each(
    *(
        kind.__dict__[name]
        for kind in (list, tuple, dict, collections.OrderedDict, collections.deque, object)
        for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
        if name in kind.__dict__
    )
)
def compare(tracer: Tracer, method: Any, left: Any, right: Any) -> Any:
    return tracer.operators.compare_eagerly(method, left, right)


@special(list.__repr__, tuple.__repr__, dict.__repr__, set.__repr__, object.__str__)
def container_repr(tracer: Tracer, container: Any) -> str:
    return special_methods.repr_of(tracer, container)


# -- identities --

#: Objects that are usually the same in all calls, so that their id may be guarded.
_LASTING = (
    torch.nn.Module, torch.nn.Parameter, *classes("optim.Optimizer"), type, types.FunctionType,
    types.ModuleType,
)  # fmt: skip
#: Functions that use an object's id to detect recursive reprs.
_REPR_GUARDS = frozenset({("dataclasses", "wrapper"), ("reprlib", "wrapper")})


@special(id)
def identity(tracer: Tracer, obj: Any) -> Any:
    frame = tracer.frames[-1]
    if (frame.globals.get("__name__"), frame.code.raw.co_name) in _REPR_GUARDS:
        return id(obj)
    if isinstance(obj, _LASTING) and not tracer.provenance.is_fresh(obj):
        return queries.identity(tracer, obj)
    tracer.break_graph("unknown_native", "id: the address of an object differs between calls")


# -- exceptions --


def _is_condition(value: Any) -> bool:
    """Whether `split` calls a value: a function, from Python 3.13 on all but classes."""
    if sys.version_info < (3, 13):
        return isinstance(value, types.FunctionType)
    return callable(value) and not isinstance(value, type)


@special_each(BaseExceptionGroup.split, BaseExceptionGroup.subgroup)
def split_group(tracer: Tracer, method: Any, group: Any, condition: Any) -> Any:
    """split and subgroup: the condition may be a user function."""
    tracer.exceptions.look_into(group)
    if tracer.entries.python_method(group, "derive"):
        tracer.break_graph(
            "unknown_native", f"{type(group).__name__}.derive is asked by {method.__name__}"
        )

    def holds(error: BaseException) -> bool:
        return tracer.operators.truth(tracer.calls.call_value(condition, [error], {}))

    matched = method(group, holds if _is_condition(condition) else condition)
    for part in matched if isinstance(matched, tuple) else (matched,):
        if part is not None and part is not group:
            tracer.exceptions.same_history(group, part)
    return matched


declare(PURE, [BaseExceptionGroup.derive])


@special(BaseException.add_note)
def add_note(tracer: Tracer, error: Any, note: Any) -> None:
    if not tracer.provenance.is_fresh(error):
        tracer.break_graph(
            "unsupported_mutation", "a note is added to an exception from before this segment"
        )
    tracer.side_effects.mutations += 1
    error.add_note(note)
