"""Built-in functions over iterables: iter, next, sorted, min, max, sum, any, all, zip, map, filter,
enumerate, reversed, range; and the methods of iterators."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import torch

from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import special, special_rows
from tracer_core.native_functions.list_methods import sort_items
from tracer_core.trace import special_methods
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.containers import NATIVE_ITERATORS
from tracer_core.trace.generators import LazyIterator
from tracer_core.trace.symbolic_scalars import SYMBOLS
from tracer_core.trace.tracer import Tracer


def native_iterator(tracer: Tracer, iterable: Any) -> Any:
    """Returns an iterator over the same items that native iterators (zip, enumerate) may hold: user
    code inside it calls back into the tracer."""
    return tracer.containers.native_iterator(tracer.containers.iterate(iterable))


def _holds(tracer: Tracer, function: Any, item: Any) -> bool:
    """Returns the truth of function(item), or of the item if the function is None."""
    if function is not None:
        item = tracer.calls.call_value(function, [item], {})
    return bool(tracer.operators.to_bool(item))


@special(iter)
def iter_of(tracer: Tracer, value: Any, sentinel: Any = ABSENT, /) -> Any:
    if sentinel is ABSENT:
        return tracer.containers.iterate(value)

    def step() -> Any:
        item = tracer.calls.call_value(value, [], {})
        if special_methods.same_value(tracer, sentinel, item):
            raise StopIteration
        return item

    return LazyIterator(tracer, "iter() with a sentinel", step)


@special(next)
def next_of(tracer: Tracer, iterator: Any, default: Any = ABSENT, /) -> Any:
    more, item = tracer.containers.next_item(iterator)
    if more:
        return item
    if default is not ABSENT:
        return default
    raise StopIteration(item) if item is not None else StopIteration()


@special(sorted)
def sorted_list(tracer: Tracer, *args: Any, **kwargs: Any) -> list[Any]:
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        return sorted(*args, **kwargs)  # raises Python's own error
    items = list(tracer.containers.spread(args[0], varies=True))
    if kwargs.get("key") is None:
        items = [tracer.scalars.concrete(item) if type(item) in SYMBOLS else item for item in items]
    sort_items(tracer, items, **kwargs)
    return items


@special_rows({max: (max, ">"), min: (min, "<")})
def extreme(tracer: Tracer, pick: Any, symbol: str, *args: Any, **kwargs: Any) -> Any:
    if not args or not kwargs.keys() <= {"key", "default"} or (args[1:] and "default" in kwargs):
        return pick(*args, **kwargs)  # raises Python's own error
    key = kwargs.get("key")
    items: Any = args
    if len(args) == 1 and key is None and tracer.containers.is_snapshot(args[0]):
        items = tracer.containers.spread(args[0], varies=True)
    elif len(args) == 1:
        items = tracer.containers.stream(args[0])
    if isinstance(items, (list, tuple)) and key is None:
        if not kwargs and tracer.scalars.among_numbers(items):
            return tracer.scalars.operate(pick, tuple(items))
        if all(map(is_constant, items)):
            return pick(items, **{name: kwargs[name] for name in kwargs if name != "key"})
    best, best_key = ABSENT, None
    for item in items:
        item_key = item if key is None else tracer.calls.call_value(key, [item], {})
        if best is ABSENT or tracer.operators.to_bool(
            tracer.operators.compare(symbol, item_key, best_key)
        ):
            best, best_key = item, item_key
    if best is ABSENT:
        return kwargs["default"] if "default" in kwargs else pick(())
    return best


@special(sum)
def sum_of(tracer: Tracer, iterable: Any, /, start: Any = 0) -> Any:
    if isinstance(start, (str, bytes, bytearray)):
        return sum((), start)  # raises Python's own error
    full = tracer.containers.is_snapshot(iterable)
    simple: list[Any] = []  # summed by C code: 3.12 sums floats with compensation
    summed = False
    for item in (
        tracer.containers.spread(iterable, varies=True)
        if full
        else tracer.containers.stream(iterable)
    ):
        if not summed and is_constant(start) and is_constant(item):
            simple.append(item)
            continue
        if not summed and is_constant(start):
            start = sum(simple, start)
        summed = True
        start = tracer.operators.binary("+", start, item)
    return start if summed or not is_constant(start) else sum(simple, start)


@special_rows({any: (any, True), all: (all, False)})
def search(tracer: Tracer, function: Any, wanted: bool, iterable: Any) -> bool:
    iterator = tracer.containers.iterate(iterable)
    if tracer.containers.runs_in_c(iterator):
        return bool(function(iterator))
    while True:
        more, item = tracer.containers.advance(iterator)
        if not more:
            return not wanted
        if tracer.operators.to_bool(item) is wanted:
            return wanted


@special(zip)
def zip_of(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return zip(*(native_iterator(tracer, a) for a in args), **kwargs)  # noqa: B905  (strict is in kwargs if asked for)


@special(enumerate)
def enumerate_of(tracer: Tracer, iterable: Any, *args: Any, **kwargs: Any) -> Any:
    return enumerate(native_iterator(tracer, iterable), *args, **kwargs)


@special(map)
def map_of(tracer: Tracer, function: Any, first: Any, /, *others: Any) -> Any:
    pools = [native_iterator(tracer, i) for i in (first, *others)]
    rows = zip(*pools, strict=False)

    def step() -> Any:
        return tracer.calls.call_value(function, list(next(rows)), {})

    return LazyIterator(tracer, "map", step, map, function, *pools)


@special_rows({filter: ("filter", True), itertools.filterfalse: ("filterfalse", False)})
def filter_of(tracer: Tracer, title: str, keep: bool, function: Any, iterable: Any) -> Any:
    items = native_iterator(tracer, iterable)

    def step() -> Any:
        while True:
            item = next(items)
            if _holds(tracer, function, item) is keep:
                return item

    kind = filter if keep else itertools.filterfalse
    return LazyIterator(tracer, title, step, kind, function, items)


@special(reversed)
def reversed_of(tracer: Tracer, value: Any) -> Any:
    method = tracer.entries.python_method(value, "__reversed__")
    if method is not None:
        return tracer.calls.call_value(method, [value], {})
    if tracer.entries.is_disabled(value, "__reversed__"):
        return reversed(value)  # raises Python's own error
    numbers = tracer.containers.loops.backwards(value)
    if numbers is not None:
        return numbers
    if isinstance(value, (list, tuple, dict, collections.deque, range, str, bytes)):
        tracer.native_calls.native_reads(value)
        return tracer.native_calls.note_allocation(reversed(value))
    if not (
        tracer.entries.python_method(value, "__len__")
        and tracer.entries.python_method(value, "__getitem__")
    ):
        if type(value) not in _VIEWS:
            tracer.break_graph("unknown_native", f"reversed() of a {type(value).__name__}")
        tracer.reads.expand(value)
        return reversed(value)
    rest = iter(range(tracer.calls.call_value(len, [value], {}) - 1, -1, -1))
    return LazyIterator(tracer, "reversed", lambda: tracer.containers.getitem(value, next(rest)))


_VIEWS = tuple(type(getattr({}, name)()) for name in ("keys", "values", "items"))


@special(range)
def range_of(tracer: Tracer, *args: Any) -> Any:
    args = tuple([tracer.containers.index_of(a) for a in args])
    if any(isinstance(a, torch.Tensor) for a in args):
        tracer.break_graph("data_dependent_value", "range() of a tensor")
    limits = [tracer.operators.index(a) for a in args]
    return range(*(int(a) if isinstance(a, torch.SymInt) else a for a in limits))


_ITERATORS = {*NATIVE_ITERATORS, type(iter(int, 1))}
_ITERATORS |= {kind for kind in vars(itertools).values() if isinstance(kind, type)}
for _type in _ITERATORS:
    _raw = _type.__dict__.get("__next__")
    if hasattr(_raw, "__objclass__") and not isinstance(_raw, type(torch.rand_like)):
        special(_raw)(next_of)
        if hasattr(_type.__dict__.get("__iter__"), "__objclass__"):
            special(_type.__dict__["__iter__"])(lambda tracer, iterator: iterator)
