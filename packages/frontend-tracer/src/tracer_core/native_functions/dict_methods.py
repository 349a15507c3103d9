"""Methods of dictionaries (dict, OrderedDict, defaultdict), and Counter's loop."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import (
    MOVES,
    MUTATES,
    declare,
    methods_of,
    special,
    special_each,
)
from tracer_core.trace import special_methods
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.tracer import Tracer

declare(MOVES, methods_of(dict, "__len__ __iter__ __or__ __ror__ __reversed__"))
declare(
    MOVES,
    methods_of(
        collections.OrderedDict, "copy keys values items __iter__ __reversed__ __or__ __ror__"
    ),
)
declare(MOVES, methods_of(collections.defaultdict, "copy __copy__ __or__ __ror__"))
declare(MUTATES, methods_of(dict, "popitem clear"))
declare(MUTATES, methods_of(collections.OrderedDict, "move_to_end popitem clear"))


def _kind(target: Any) -> Any:
    """Returns the base class whose methods run no user code."""
    return collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict


@special(dict.__dict__["fromkeys"], collections.OrderedDict.__dict__["fromkeys"])
def fromkeys(tracer: Tracer, cls: Any, iterable: Any, value: Any = None, /) -> Any:
    """``cls.fromkeys(keys, value)``: the row gets the class first."""
    result = tracer.calls.call_value(cls, [], {})
    for key in tracer.containers.stream(iterable):
        tracer.containers.setitem(result, key, value)
    return result


@special(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(tracer: Tracer, mapping: Any, iterable: Any) -> None:
    """The counting loop of collections.Counter."""
    elements = tracer.containers.stream(iterable)
    tracer.attributes.getattr(mapping, "get")  # without one, even an empty count raises
    for element in elements:
        count = tracer.calls.call_value(tracer.attributes.getattr(mapping, "get"), [element, 0], {})
        tracer.containers.setitem(mapping, element, tracer.operators.binary("+", count, 1))


@special(collections.defaultdict.__missing__)
def missing(tracer: Tracer, target: Any, key: Any) -> Any:
    factory = tracer.attributes.getattr(target, "default_factory")
    if factory is None:
        raise KeyError(key)
    return tracer.containers.store_missing(target, key, factory)


@special_each(dict.keys, dict.values, dict.items)
def view_of(tracer: Tracer, method: Any, target: Any) -> Any:
    """Returns a view, whose values are guarded where they are read."""
    tracer.reads.check_size(target)
    tracer.reads.keys(target)
    return method(target)


@special(dict.copy)
def copy_of(tracer: Tracer, target: Any) -> dict[Any, Any]:
    return dict(tracer.reads.entries(target, varies=True))


@special(dict.get)
def get(tracer: Tracer, target: Any, key: Any, default: Any = None, /) -> Any:
    return tracer.reads.dict_get(target, key, default, varies=True)


@special(dict.__getitem__)
def getitem(tracer: Tracer, target: Any, key: Any) -> Any:
    value = tracer.reads.dict_get(target, key, ABSENT, varies=True)
    if value is ABSENT:
        raise KeyError(key)
    return value


@special(dict.__contains__)
def contains(tracer: Tracer, target: Any, key: Any) -> bool:
    return tracer.reads.dict_get(target, key, ABSENT) is not ABSENT


@special(dict.__setitem__, collections.OrderedDict.__setitem__)
def store(tracer: Tracer, target: Any, key: Any, value: Any) -> None:
    key = tracer.scalars.concrete(key)
    tracer.reads.check_key(key, target)
    special_methods.check_hashable(key, dict)
    tracer.side_effects.before_store(target, key)
    _kind(target).__setitem__(target, key, value)


@special(dict.setdefault, collections.OrderedDict.setdefault)
def setdefault(tracer: Tracer, target: Any, key: Any, default: Any = None) -> Any:
    value = tracer.reads.dict_get(target, key, ABSENT, varies=True)
    if value is not ABSENT:
        return value
    tracer.reads.check_key(key, target)
    tracer.side_effects.before_store(target, key)
    _kind(target).__setitem__(target, key, default)
    return default


@special(dict.__delitem__, collections.OrderedDict.__delitem__)
def delete(tracer: Tracer, target: Any, key: Any) -> None:
    if not tracer.reads.has_key(target, key):
        raise KeyError(key)
    tracer.side_effects.before_remove(target, key)
    _kind(target).__delitem__(target, key)


@special(dict.__ior__, collections.OrderedDict.__ior__)
def inplace_or(tracer: Tracer, target: Any, other: Any) -> Any:
    return tracer.operators.inplace("|", target, other)


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


@special(dict.pop, collections.OrderedDict.pop)
def pop(tracer: Tracer, target: Any, key: Any, default: Any = ABSENT) -> Any:
    lookup_key = key
    hashable = is_constant(key) and _is_hashable(key)
    if not hashable and type(target) is dict and not tracer.reads.keys(target):
        lookup_key = ""  # an empty dictionary does not hash the key
    tracer.reads.check_key(lookup_key, target)
    value = tracer.reads.dict_get(target, lookup_key, ABSENT, varies=True)
    if value is not ABSENT:
        tracer.side_effects.before_remove(target, lookup_key)
        _kind(target).pop(target, lookup_key)
        return value
    if default is ABSENT:
        raise KeyError(key)
    return default


@special(
    dict.update, collections.OrderedDict.update, dict.__init__, collections.OrderedDict.__init__
)
def update(tracer: Tracer, target: Any, items: Any = (), /, **kwargs: Any) -> None:
    pairs = pairs_of(tracer, items, _kind(target))
    for key, value in itertools.chain(pairs, kwargs.items()):
        if isinstance(target, collections.OrderedDict):  # its update() calls __setitem__
            tracer.containers.setitem(target, key, value)
            continue
        tracer.reads.check_key(key, target)
        special_methods.check_hashable(key, dict)
        tracer.side_effects.before_store(target, key)
        dict.__setitem__(target, key, value)


@special(collections.defaultdict.__init__)
def defaultdict_init(tracer: Tracer, target: Any, /, *args: Any, **kwargs: Any) -> None:
    if not tracer.provenance.is_fresh(target):
        tracer.break_graph("unsupported_mutation", "a defaultdict is initialised again")
    collections.defaultdict.__init__(target, *args[:1])
    update(tracer, target, *args[1:], **kwargs)


def pairs_of(tracer: Tracer, source: Any, kind: type = dict) -> Iterator[tuple[Any, Any]]:
    """Yields the items that kind(source) reads from a mapping or from pairs, one by one."""
    if isinstance(source, dict) or tracer.attributes.has_attribute(source, "keys"):
        yield from tracer.containers.entries_of(source)
        return
    for i, pair in enumerate(tracer.containers.stream(source)):
        try:
            entry = tracer.containers.spread(pair)
        except TypeError:  # also one of the program's own: C code gives it other words, or a note
            tracer.break_graph("native_python", f"{kind.__name__}() refuses its arguments")
        if len(entry) != 2 and kind is not dict:
            tracer.break_graph("native_python", f"{kind.__name__}() refuses its arguments")
        if len(entry) != 2:
            raise ValueError(
                f"dictionary update sequence element #{i} has length {len(entry)}; 2 is required"
            )
        yield tracer.scalars.concrete(entry[0]), entry[1]
