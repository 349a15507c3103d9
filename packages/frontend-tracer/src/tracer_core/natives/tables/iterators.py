"""itertools, and the methods of iterators."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from tracer_core.natives import polyfills
from tracer_core.natives.effects import special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace.containers import NATIVE_ITERATORS
from tracer_core.trace.generators import LazyIterator


def _of_iterators(function: Any) -> Any:
    """Handles iterators that pull one item at a time: user code inside them calls back into the
    tracer."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        pools, rest, kwargs = _pools_of(tracer, function, args, kwargs)
        return function(
            *(tracer.containers.native_iterator(tracer.containers.iterate(a)) for a in pools),
            *rest,
            **kwargs,
        )

    return handler


def _of_pools(function: Any) -> Any:
    """Handles iterators that read their arguments completely when created."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        pools, rest, kwargs = _pools_of(tracer, function, args, kwargs)
        return function(*(tracer.containers.spread(a) for a in pools), *rest, **kwargs)

    return handler


def _pools_of(tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Returns (iterables, other arguments, keywords without iterables)."""
    if function in _ALL_ITERATED:
        return args, [], kwargs
    if "iterable" in kwargs and not args:
        kwargs = dict(kwargs)
        args = [kwargs.pop("iterable")]
    for value in (*args[1:], *kwargs.values()):
        if not isinstance(value, (int, type(None))):
            tracer.break_graph(
                "native_python", f"{function.__name__}() by a {type(value).__name__}"
            )
    return args[:1], args[1:], kwargs


_ALL_ITERATED = frozenset({itertools.chain, itertools.zip_longest, itertools.product})


for _function in (itertools.chain, itertools.islice, itertools.zip_longest, itertools.pairwise,
itertools.cycle,
                  itertools.tee, *([itertools.batched] if hasattr(itertools,
                  "batched") else [])):  # fmt: skip
    special(_function)(_of_iterators(_function))
for _pools in (itertools.product, itertools.combinations, itertools.permutations,
               itertools.combinations_with_replacement):  # fmt: skip
    special(_pools)(_of_pools(_pools))


@special(itertools.repeat)
def repeat(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return itertools.repeat(*args, **kwargs)


_NO_NUMBERS = (list, tuple, str, bytes, dict, set, frozenset, type(None))


@special(itertools.count)
def count(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if all(isinstance(value, (int, float)) for value in (*args, *kwargs.values())):
        return itertools.count(*args, **kwargs)
    if any(isinstance(value, _NO_NUMBERS) for value in (*args, *kwargs.values())):
        return itertools.count(*args, **kwargs)  # raises Python's own error
    return tracer.calls.prepare(polyfills.count, args, kwargs)


@special(itertools.chain.__dict__["from_iterable"])
def chain_from_iterable(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    outer = tracer.containers.native_iterator(tracer.containers.iterate(args[-1]))
    inner = LazyIterator(
        tracer,
        "chain",
        lambda: tracer.containers.native_iterator(tracer.containers.iterate(next(outer))),
    )
    return itertools.chain.from_iterable(inner)


@special(itertools.starmap)
def starmap(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function = args[0]
    rows = tracer.containers.native_iterator(tracer.containers.iterate(args[1]))
    return LazyIterator(
        tracer,
        "starmap",
        lambda: tracer.calls.call_value(function, tracer.containers.spread(next(rows)), {}),
    )


@special(itertools.filterfalse)
def filterfalse(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, iterable = args
    items = tracer.containers.native_iterator(tracer.containers.iterate(iterable))

    def step() -> Any:
        while True:
            item = next(items)
            if not tracer.operators.truth(
                item if function is None else tracer.calls.call_value(function, [item], {})
            ):
                return item

    return LazyIterator(tracer, "filterfalse", step)


@special(itertools.compress)
def compress(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    data, selectors = [*args, *(kwargs[name] for name in ("data", "selectors") if name in kwargs)]
    items = tracer.containers.native_iterator(tracer.containers.iterate(data))
    chosen = tracer.containers.native_iterator(tracer.containers.iterate(selectors))

    def step() -> Any:
        while True:
            item = next(items)
            if tracer.operators.truth(next(chosen)):
                return item

    return LazyIterator(tracer, "compress", step)


def _while(keep: bool) -> Any:
    """takewhile (keep) and dropwhile."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = args[0]
        items = tracer.containers.native_iterator(tracer.containers.iterate(args[1]))
        dropping = not keep

        def step() -> Any:
            nonlocal dropping
            while True:
                item = next(items)
                if not keep and not dropping:
                    return item
                if tracer.operators.truth(tracer.calls.call_value(function, [item], {})):
                    if keep:
                        return item
                    continue
                if keep:
                    raise StopIteration
                dropping = False
                return item

        return LazyIterator(tracer, "takewhile" if keep else "dropwhile", step)

    return handler


special(itertools.takewhile)(_while(True))
special(itertools.dropwhile)(_while(False))


@special(itertools.accumulate)
def accumulate(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = tracer.containers.native_iterator(tracer.containers.iterate(args[0]))
    function = args[1] if len(args) > 1 else kwargs.get("func")
    state: list[Any] = []

    def step() -> Any:
        if not state:
            initial = kwargs.get("initial")
            state.append(next(items) if initial is None else initial)
        elif function is None:
            state[0] = tracer.operators.binary("+", state[0], next(items))
        else:
            state[0] = tracer.calls.call_value(function, [state[0], next(items)], {})
        return state[0]

    return LazyIterator(tracer, "accumulate", step)


@special(itertools.groupby)
def groupby(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.native_calls.born(tracer.calls.call_value(polyfills.GroupBy, args, kwargs))


def _next_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    more, item = tracer.containers.advance(args[0])
    if not more:
        raise StopIteration(item) if item is not None else StopIteration()
    return item


#: Iterator types that the tracer advances, for their methods called by name.
for _type in {
    *NATIVE_ITERATORS,
    *(t for t in vars(itertools).values() if isinstance(t, type)),
    type(iter(int, 1)),
}:
    _raw = _type.__dict__.get("__next__")
    if (
        _raw is not None
        and not isinstance(_raw, type(torch.rand_like))
        and hasattr(_raw, "__objclass__")
    ):
        special(_raw)(_next_of)
        if hasattr(_type.__dict__.get("__iter__"), "__objclass__"):
            special(_type.__dict__["__iter__"])(lambda tracer, args, kwargs: args[0])
