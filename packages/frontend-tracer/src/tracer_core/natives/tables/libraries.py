"""The standard library: math, itertools, copy, functools and what looks like it."""

from __future__ import annotations

import _operator
import collections
import copy
import functools
import itertools
import math
import random
import sys
import time
import types
import warnings
from typing import Any

import torch

from tracer_core.interpreter.generators import LazyIterator
from tracer_core.natives.effects import MUTATES, PURE, SHALLOW, breaks, declare, special

_MATH = [f for f in vars(math).values() if isinstance(f, types.BuiltinFunctionType)]
_SYMBOLIC_MATH = {math.sqrt: torch.sym_sqrt, math.ceil: None, math.floor: None, math.trunc: None}
declare(PURE, [f for f in _MATH if f not in (math.prod, math.fsum, math.floor, math.ceil, math.trunc)])
declare(PURE, [sys.getrecursionlimit, sys.intern])
declare(MUTATES, [collections._count_elements])  # type: ignore[attr-defined]
declare(SHALLOW, [types.MethodType, types.SimpleNamespace, types.MappingProxyType, types.FunctionType])
declare(PURE, [_operator._compare_digest] if hasattr(_operator, "_compare_digest") else [])
breaks("side_effect_native", "the clock is read", [time.time, time.perf_counter, time.monotonic, time.sleep,
       time.time_ns, time.perf_counter_ns])  # fmt: skip
breaks("side_effect_native", "a warning is shown", [warnings.warn])
breaks("side_effect_native", "Python's random numbers are drawn", [
    random.random, random.randint, random.randrange, random.choice, random.choices, random.shuffle, random.sample,
    random.uniform, random.gauss, random.seed, random.normalvariate])  # fmt: skip


@special(sys.exc_info)
def exc_info(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    error = tracer.handled()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@special(sys.exception)
def exception(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.handled()


@special(math.prod)
def prod(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    total = kwargs.get("start", 1)
    for item in tracer.spread(args[0]):
        total = tracer.binary("*", total, item)
    return total


def _of_iterators(function: Any) -> Any:
    """Iterators that ask for one item at a time: those with user code inside come back to the tracer."""

    def handler(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        plain = (int, type(None))
        lazy = [a if isinstance(a, plain) else tracer.native_iterator(tracer.iterate(a)) for a in args]
        return function(*lazy, **kwargs)

    return handler


def _of_pools(function: Any) -> Any:
    """Iterators that read their arguments whole when they are made."""

    def handler(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return function(
            *(a if isinstance(a, (int, type(None))) else tracer.spread(a) for a in args), **kwargs
        )

    return handler


for _function in (
    itertools.chain,
    itertools.islice,
    itertools.zip_longest,
    itertools.pairwise,
    itertools.cycle,
):
    special(_function)(_of_iterators(_function))
for _pools in (itertools.product, itertools.combinations, itertools.permutations,
               itertools.combinations_with_replacement):  # fmt: skip
    special(_pools)(_of_pools(_pools))
declare(PURE, [itertools.repeat, itertools.count])


@special(itertools.chain.__dict__["from_iterable"])
def chain_from_iterable(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    outer = tracer.native_iterator(tracer.iterate(args[-1]))
    inner = LazyIterator(tracer, "chain", lambda: tracer.native_iterator(tracer.iterate(next(outer))))
    return itertools.chain.from_iterable(inner)


@special(itertools.starmap)
def starmap(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function = args[0]
    rows = tracer.native_iterator(tracer.iterate(args[1]))
    return LazyIterator(tracer, "starmap", lambda: tracer.call_value(function, tracer.spread(next(rows)), {}))


def _while(keep: bool) -> Any:
    """takewhile (keep) and dropwhile."""

    def handler(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function = args[0]
        items = tracer.native_iterator(tracer.iterate(args[1]))
        dropping = not keep

        def step() -> Any:
            nonlocal dropping
            while True:
                item = next(items)
                if not keep and not dropping:
                    return item
                if tracer.truth(tracer.call_value(function, [item], {})):
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
def accumulate(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = tracer.spread(args[0])
    function = args[1] if len(args) > 1 else kwargs.get("func")
    results: list[Any] = [] if kwargs.get("initial") is None else [kwargs["initial"]]
    for item in items:
        if not results:
            results.append(item)
        elif function is None:
            results.append(tracer.binary("+", results[-1], item))
        else:
            results.append(tracer.call_value(function, [results[-1], item], {}))
    return iter(results)


@special(copy.copy)
def copy_copy(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    (obj,) = args
    if type(obj) in (list, dict, set, tuple):
        tracer.expand(obj)
        return copy.copy(obj)
    tracer.break_graph("native_python", f"copy.copy of a {type(obj).__name__}")


breaks("native_python", "an object is copied deeply", [copy.deepcopy])
breaks("native_python", "a cache of results lives outside the program", [functools.lru_cache])
