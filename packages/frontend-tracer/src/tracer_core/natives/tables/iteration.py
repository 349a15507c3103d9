"""Built-in iteration: iter, next, sorted, min, max, sum, any, all, zip, map, range, ..."""

from __future__ import annotations

import collections
from typing import Any

import torch

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives.effects import special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import special_methods
from tracer_core.trace.dict_entries import ABSENT
from tracer_core.trace.generators import LazyIterator
from tracer_core.trace.host_objects import SortKey


@special(iter)
def iter_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        return _until(tracer, *args)
    return tracer.containers.iterate(args[0])


def _until(tracer: Tracing, function: Any, sentinel: Any) -> LazyIterator:
    def step() -> Any:
        value = tracer.calls.call_value(function, [], {})
        if special_methods.same_value(tracer, sentinel, value):
            raise StopIteration
        return value

    return LazyIterator(tracer, "iter() with a sentinel", step)


@special(next)
def next_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    more, item = tracer.containers.advance(args[0])
    if more:
        return item
    if len(args) > 1:
        return args[1]
    raise StopIteration(item) if item is not None else StopIteration()


@special(sorted)
def sorted_list(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    if len(args) != 1 or not kwargs.keys() <= {"key", "reverse"}:
        return sorted(*args, **kwargs)  # raises Python's own error
    items = tracer.containers.spread(args[0])
    key = kwargs.get("key")
    keys = items if key is None else [tracer.calls.call_value(key, [item], {}) for item in items]
    if not all(map(is_constant, keys)):
        keys = [SortKey(tracer, key) for key in keys]
    reverse = tracer.operators.truth(kwargs.get("reverse", False))
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)
    return [items[i] for i in order]


def _extreme(pick: Any, symbol: str) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        items = tracer.containers.spread(args[0], varies=True) if len(args) == 1 else args
        if not kwargs and tracer.scalars.among_numbers(items):
            return tracer.scalars.operate(pick, tuple(items))
        if kwargs.get("key") is None and all(map(is_constant, items)):
            return pick(items, **{name: value for name, value in kwargs.items() if name != "key"})
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            return pick(items)
        key = kwargs.get("key")
        best, best_key = ABSENT, None
        for item in items:
            item_key = item if key is None else tracer.calls.call_value(key, [item], {})
            if best is ABSENT or tracer.operators.truth(
                tracer.operators.compare(symbol, item_key, best_key)
            ):
                best, best_key = item, item_key
        return best

    return handler


special(max)(_extreme(max, ">"))
special(min)(_extreme(min, "<"))


@special(sum)
def sum_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    items = tracer.containers.spread(args[0], varies=True)
    if is_constant(total) and all(map(is_constant, items)):
        return sum(items, total)  # 3.12 sums floats with compensation
    for item in items:
        total = tracer.operators.binary("+", total, item)
    return total


@special(any)
def any_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return _search(tracer, args[0], True)


@special(all)
def all_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return not _search(tracer, args[0], False)


def _search(tracer: Tracing, iterable: Any, wanted: bool) -> bool:
    iterator = tracer.containers.iterate(iterable)
    while True:
        more, item = tracer.containers.advance(iterator)
        if not more:
            return False
        if tracer.operators.truth(item) is wanted:
            return True


def _lazy(tracer: Tracing, iterable: Any) -> Any:
    """Returns an iterator over the same items that native iterators (zip, enumerate) may hold."""
    iterator = tracer.containers.iterate(iterable)
    return tracer.containers.native_iterator(iterator)


@special(zip)
def zip_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return zip(*(_lazy(tracer, a) for a in args), **kwargs)  # noqa: B905  (strict is in kwargs if asked for)


@special(enumerate)
def enumerate_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return enumerate(_lazy(tracer, args[0]), *args[1:], **kwargs)


@special(map)
def map_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, *iterables = args
    rows = zip(*(_lazy(tracer, i) for i in iterables), strict=False)
    return LazyIterator(
        tracer, "map", lambda: tracer.calls.call_value(function, list(next(rows)), {})
    )


@special(filter)
def filter_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, iterable = args
    items = _lazy(tracer, iterable)

    def step() -> Any:
        while True:
            item = next(items)
            if tracer.operators.truth(
                item if function is None else tracer.calls.call_value(function, [item], {})
            ):
                return item

    return LazyIterator(tracer, "filter", step)


@special(reversed)
def reversed_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    method = tracer.entries.python_method(args[0], "__reversed__")
    if method is not None:
        return tracer.calls.call_value(method, [args[0]], {})
    (value,) = args
    if isinstance(value, (list, tuple, dict, collections.deque, range, str, bytes)):
        tracer.native_calls.native_reads(value)
        return reversed(value)
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


_EMPTY: dict[Any, Any] = {}
_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))


@special(range)
def range_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if any(isinstance(a, torch.Tensor) for a in args):
        tracer.break_graph("data_dependent_value", "range() of a tensor")
    args = [tracer.operators.index(a) for a in args]
    return range(*(int(a) if isinstance(a, torch.SymInt) else a for a in args))
