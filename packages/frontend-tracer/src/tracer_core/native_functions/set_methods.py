"""Methods of sets and frozensets."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from tracer_core.native_effects.effects import (
    MOVES,
    MUTATES,
    declare,
    methods_of,
    special,
    special_each,
)
from tracer_core.trace import special_methods
from tracer_core.trace.tracer import Tracer

_SET_UPDATES = (
    "difference_update intersection_update symmetric_difference_update __isub__ __iand__"
    " __ior__ __ixor__"
)
_SET_OPERATIONS = (
    "difference intersection isdisjoint issubset issuperset symmetric_difference union __eq__"
    " __ne__ __lt__ __le__ __gt__ __ge__ __sub__ __and__ __or__ __xor__ __rsub__ __rand__"
    " __ror__ __rxor__"
)
_SETS = (set, frozenset)
for _set in _SETS:
    declare(MOVES, methods_of(_set, "copy __len__ __iter__"))
declare(MUTATES, methods_of(set, "discard remove clear"))


@special(set.__init__)
def set_init(tracer: Tracer, target: Any, iterable: Any = (), /) -> None:
    items = tracer.calls.call_value(
        set, [iterable], {}
    )  # compares the members as the program would
    tracer.side_effects.before_change(target)
    set.__init__(target, items)


@special_each(*(m for cls in _SETS for m in methods_of(cls, f"{_SET_OPERATIONS} {_SET_UPDATES}")))
def set_operation(tracer: Tracer, method: Any, target: Any, *others: Any) -> Any:
    is_slot = method.__name__.startswith("__")
    rest = [
        other
        if is_slot or isinstance(other, _SETS)
        else _members(tracer, other)
        if type(other) is dict or tracer.containers.is_snapshot(other)
        else _elements(tracer, target, other)
        for other in others
    ]
    tracer.native_calls.native_reads(
        target, *(other for other in rest if not isinstance(other, types.GeneratorType))
    )
    elements = [item for other in rest if isinstance(other, (*_SETS, list, dict)) for item in other]
    special_methods.realize_keys(tracer, [*target, *elements])
    if method.__name__ in _SET_UPDATES.split():
        tracer.side_effects.before_change(target)
    return method(target, *rest)


def _members(tracer: Tracer, iterable: Any) -> Any:
    """Returns the members of an iterable that gives them all at once."""
    items = [tracer.scalars.concrete(item) for item in tracer.containers.spread(iterable)]
    return special_methods.as_given(iterable, items)


def _elements(tracer: Tracer, target: Any, iterable: Any) -> Iterator[Any]:
    """Yields the items of an iterator as C code asks for them; some methods stop early."""
    for item in tracer.containers.stream(iterable):
        element = tracer.scalars.concrete(item)
        tracer.reads.check_key(element, target)
        yield element


@special_each(set.__contains__, frozenset.__contains__)
def set_contains(tracer: Tracer, method: Any, target: Any, member: Any) -> bool:
    tracer.reads.check_key(member, target)
    tracer.native_calls.native_reads(target)
    return bool(method(target, member))


@special(set.add)
def add(tracer: Tracer, target: Any, value: Any) -> None:
    value = tracer.scalars.concrete(value)
    tracer.reads.check_key(value, target)
    special_methods.check_hashable(value, set)
    tracer.side_effects.before_append(target, [value])
    set.add(target, value)


@special(set.pop)
def set_pop(tracer: Tracer, target: Any) -> Any:
    if len(target) > 1 and not tracer.provenance.is_fresh(
        target
    ):  # its choice of member depends on earlier pops
        tracer.break_graph("unsupported_mutation", "set.pop() of a set from before this segment")
    tracer.native_calls.native_reads(target)
    tracer.side_effects.before_change(target)
    tracer.reads.note_order(target)
    return set.pop(target)


@special(set.update)
def set_update(tracer: Tracer, target: Any, *iterables: Any) -> None:
    for iterable in iterables:
        full = tracer.containers.is_snapshot(iterable) or isinstance(iterable, (*_SETS, dict))
        groups = [_members(tracer, iterable)] if full else (
            [tracer.scalars.concrete(item)] for item in tracer.containers.stream(iterable))  # fmt: skip
        for items in groups:
            special_methods.realize_keys(tracer, [*target, *items])
            tracer.side_effects.before_append(target, list(items))
            set.update(target, items)
