"""Methods of lists, tuples, deques and arrays, and comparisons of containers."""

from __future__ import annotations

import array
import collections
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import (
    MOVES,
    MUTATES,
    PURE,
    declare,
    methods_of,
    special,
    special_each,
)
from tracer_core.trace import special_methods
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.host_objects import SortKey
from tracer_core.trace.tracer import Tracer

declare(
    MOVES, methods_of(list, "__len__ __iter__ __getitem__ __add__ __mul__ __reversed__ __rmul__")
)
declare(
    MOVES, methods_of(tuple, "__len__ __iter__ __getitem__ __add__ __mul__ __rmul__ __getnewargs__")
)
declare(
    MOVES,
    methods_of(
        collections.deque,
        "copy __copy__ __len__ __iter__ __getitem__ __add__ __mul__ __rmul__ __reversed__",
    ),
)
declare(MUTATES, methods_of(list, "insert pop clear reverse __setitem__ __delitem__ __imul__"))
declare(
    MUTATES,
    methods_of(
        collections.deque,
        "appendleft pop popleft clear rotate reverse insert __setitem__ __delitem__ __imul__",
    ),
)
declare(
    MUTATES,
    methods_of(
        array.array,
        "append extend insert pop remove reverse byteswap fromlist frombytes __setitem__"
        " __delitem__ __iadd__ __imul__",
    ),
)
declare(
    PURE,  # guarded by all of the contents, like a bytearray
    methods_of(
        array.array,
        "tobytes tolist index count __len__ __getitem__ __iter__ __contains__ __eq__ __ne__"
        " __add__ __mul__",
    ),
)
declare(PURE, [array.array])


@special(list.__init__)
def list_init(tracer: Tracer, target: Any, iterable: Any = (), /) -> None:
    items = tracer.containers.spread(iterable)
    tracer.side_effects.before_change(target)
    list.__init__(target, items)


@special(collections.deque.__init__)
def deque_init(
    tracer: Tracer, target: Any, iterable: Any = ABSENT, *args: Any, **kwargs: Any
) -> None:
    if not tracer.provenance.is_fresh(target):
        tracer.break_graph("unsupported_mutation", "a deque is initialised again")
    items = [] if iterable is ABSENT else tracer.containers.spread(iterable)
    collections.deque.__init__(target, items, *args, **kwargs)


@special(list.copy)
def list_copy(tracer: Tracer, target: Any) -> list[Any]:
    return list(tracer.reads.items(target, varies=True))


@special(list.append, collections.deque.append)
def append(tracer: Tracer, target: Any, value: Any) -> None:
    """Reads no item of the container."""
    tracer.side_effects.before_append(target, [value])
    (list if isinstance(target, list) else collections.deque).append(target, value)


@special(list.extend, collections.deque.extend)
def extend(tracer: Tracer, target: Any, iterable: Any) -> None:
    tracer.containers.extend(target, iterable)


@special(collections.deque.extendleft)
def extendleft(tracer: Tracer, target: Any, iterable: Any) -> None:
    tracer.side_effects.before_change(target)
    for item in list(target) if iterable is target else tracer.containers.stream(iterable):
        collections.deque.appendleft(target, item)


@special(list.__iadd__, collections.deque.__iadd__)
def inplace_add(tracer: Tracer, target: Any, other: Any) -> Any:
    return tracer.operators.inplace("+", target, other)


@special(list.sort)
def sort(tracer: Tracer, target: Any, **kwargs: Any) -> None:
    tracer.side_effects.before_change(target)
    items = list(target)
    target.clear()  # as code that is called meanwhile finds it
    try:
        sort_items(tracer, items, **kwargs)
    finally:
        modified = bool(target)
        target[:] = items
    if modified:
        raise ValueError("list modified during sort")


def sort_items(tracer: Tracer, items: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    """Sorts a list that only the tracer sees, with the program's key and comparisons. An exception
    leaves the order that C code had reached."""
    if is_constant(reverse) or type(reverse) in (list, tuple, dict, set):
        sorted((), reverse=reverse)  # raises Python's own error
    keys = list(items)
    if key is not None:
        keys = [tracer.calls.call_value(key, [item], {}) for item in items]
    if not all(map(is_constant, keys)):
        keys = [SortKey(tracer, key) for key in keys]
    order, result = list(range(len(items))), list(items)
    try:
        order.sort(key=keys.__getitem__, reverse=tracer.operators.to_bool(reverse))
    finally:
        items[:] = [result[i] for i in order]


# -- search and comparison --


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


def _miss_message(container: Any) -> str:
    try:
        container.index(None)
    except ValueError as error:
        return str(error)
    raise AssertionError("an empty container has no items")


#: Type -> what its index() says of None, if that is missing. Some show what is missing (until 3.14).
_MISSES = {kind: _miss_message(kind()) for kind in (list, tuple, collections.deque)}
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
    message = next(text for kind, text in _MISSES.items() if isinstance(container, kind))
    if message.startswith(_SHOWN):
        message = special_methods.repr_of(tracer, wanted) + message.removeprefix(_SHOWN)
    raise ValueError(message)


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
