"""The itertools module."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import special, special_each
from tracer_core.native_functions.iteration_builtins import native_iterator
from tracer_core.trace.generators import LazyIterator
from tracer_core.trace.tracer import Tracer


def _makers(names: str) -> list[Any]:
    return [getattr(itertools, name) for name in names.split() if hasattr(itertools, name)]


_ALL_ITERATED = (itertools.chain, itertools.zip_longest, itertools.product)
#: Makers of iterators that read their arguments completely when made; the others pull items.
_SPREADING = _makers("product combinations permutations combinations_with_replacement")


@special_each(*_SPREADING, *_makers("chain islice zip_longest pairwise cycle tee batched"))
def iterator_of(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    iterables, rest = args, ()
    if function not in _ALL_ITERATED:
        if "iterable" in kwargs and not args:
            args = (kwargs.pop("iterable"),)
        iterables, rest = args[:1], args[1:]
        for value in (*rest, *kwargs.values()):
            if not isinstance(value, (int, type(None))):
                kind = type(value).__name__
                tracer.break_graph("native_python", f"{function.__name__}() by a {kind}")
    read: Any = (
        tracer.containers.spread
        if function in _SPREADING
        else functools.partial(native_iterator, tracer)
    )
    result = function(*map(read, iterables), *rest, **kwargs)
    return tracer.native_calls.note_allocation(result)  # since 3.14 nothing describes them


@special(itertools.repeat)
def repeat(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return tracer.native_calls.note_allocation(itertools.repeat(*args, **kwargs))


_NO_NUMBERS = (list, tuple, str, bytes, dict, set, frozenset, type(None))


@special(itertools.count)
def count(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    values = [*args, *kwargs.values()]
    if all(isinstance(value, (int, float)) for value in values) or any(
        isinstance(value, _NO_NUMBERS) for value in values
    ):
        # The second kind raises Python's own error.
        return tracer.native_calls.note_allocation(itertools.count(*args, **kwargs))
    return tracer.calls.prepare(polyfills.count, [*args], kwargs)


@special(itertools.chain.__dict__["from_iterable"])
def chain_from_iterable(tracer: Tracer, cls: Any, iterable: Any) -> Any:
    outer = native_iterator(tracer, iterable)
    inner = LazyIterator(tracer, "chain", lambda: native_iterator(tracer, next(outer)))
    return tracer.native_calls.note_allocation(itertools.chain.from_iterable(inner))


@special(itertools.starmap)
def starmap(tracer: Tracer, function: Any, iterable: Any) -> Any:
    rows = native_iterator(tracer, iterable)
    return LazyIterator(
        tracer,
        "starmap",
        lambda: tracer.calls.call_value(function, tracer.containers.spread(next(rows)), {}),
    )


@special(itertools.compress)
def compress(tracer: Tracer, data: Any, selectors: Any) -> Any:
    items, chosen = native_iterator(tracer, data), native_iterator(tracer, selectors)

    def step() -> Any:
        while True:
            item = next(items)
            if tracer.operators.to_bool(next(chosen)):
                return item

    return LazyIterator(tracer, "compress", step)


@special(itertools.takewhile)
def takewhile(tracer: Tracer, function: Any, iterable: Any) -> Any:
    items = native_iterator(tracer, iterable)

    def step() -> Any:
        item = next(items)
        if not tracer.operators.to_bool(tracer.calls.call_value(function, [item], {})):
            raise StopIteration
        return item

    return LazyIterator(tracer, "takewhile", step)


@special(itertools.dropwhile)
def dropwhile(tracer: Tracer, function: Any, iterable: Any) -> Any:
    items = native_iterator(tracer, iterable)
    dropping = True

    def step() -> Any:
        nonlocal dropping
        item = next(items)
        while dropping and tracer.operators.to_bool(tracer.calls.call_value(function, [item], {})):
            item = next(items)
        dropping = False
        return item

    return LazyIterator(tracer, "dropwhile", step)


@special(itertools.accumulate)
def accumulate(tracer: Tracer, iterable: Any, func: Any = None, *, initial: Any = None) -> Any:
    items = native_iterator(tracer, iterable)
    state: list[Any] = []

    def step() -> Any:
        if not state:
            state.append(next(items) if initial is None else initial)
        elif func is None:
            state[0] = tracer.operators.binary("+", state[0], next(items))
        else:
            state[0] = tracer.calls.call_value(func, [state[0], next(items)], {})
        return state[0]

    return LazyIterator(tracer, "accumulate", step)


@special(itertools.groupby)
def groupby(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return tracer.native_calls.note_allocation(
        tracer.calls.call_value(polyfills.GroupBy, [*args], kwargs)
    )


#: Iterator types that the tracer advances, for their methods called by name.
