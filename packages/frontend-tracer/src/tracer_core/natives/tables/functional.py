"""functools, weak references, and callable objects with their own call semantics."""

from __future__ import annotations

import dataclasses
import functools
import gc
import operator
import reprlib
import types
import typing
import weakref
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives import polyfills
from tracer_core.natives.effects import CALLED_CODES, CALLED_TYPES, breaks, special
from tracer_core.natives.queries import applied, query
from tracer_core.natives.tables.operators import call_attrgetter, call_itemgetter, call_methodcaller
from tracer_core.natives.tracing import Tracing

_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


@special(functools.reduce)
def reduce_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, iterable, *initial = args
    items = tracer.containers.native_iterator(tracer.containers.iterate(iterable))
    if initial:
        result = initial[0]
    else:
        result = next(items, _NOTHING)
        if result is _NOTHING:
            raise TypeError("reduce() of empty iterable with no initial value")
    for item in items:
        result = tracer.calls.call_value(function, [result, item], {})
    return result


_NOTHING = object()


@special(functools.partial)
def partial_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        raise TypeError("type 'partial' takes at least one argument")
    return functools.partial(args[0], *args[1:], **kwargs)


breaks(
    "native_python",
    "a cache of results is made, which lives outside the program",
    [functools.lru_cache],
)


# -- callable objects
# ------------------------------------------------------------------------------


def _call_partial(tracer: Tracing, partial: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    source = tracer.provenance.source_of(partial)
    parts = []
    for name in ("func", "args", "keywords"):
        value = getattr(partial, name)
        if source is not None:
            slot = tracer.provenance.sources.make(source, "slot", name)
            value = tracer.provenance.read_varying(value, slot)
        parts.append(value)
    first, named = tracer.containers.spread(parts[1]), tracer.containers.mapping(parts[2])
    return tracer.calls.prepare(parts[0], [*first, *args], {**named, **kwargs})


def _call_weakref(tracer: Tracing, reference: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = reference()
    source = tracer.provenance.source_of(reference)
    if source is None:
        return value
    tracer.provenance.follows_late = True
    return tracer.provenance.read(value, tracer.provenance.sources.make(source, "called"))


class _WithRest:
    """A cached function whose first argument is given later."""

    def __init__(self, cached: Any, *rest: Any, **kwargs: Any) -> None:
        self.cached, self.rest, self.kwargs = cached, rest, kwargs
        self.__qualname__ = getattr(cached, "__qualname__", "cached")

    def __call__(self, first: Any) -> Any:
        return self.cached(first, *self.rest, **self.kwargs)


def _call_cached(tracer: Tracing, cached: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """functools.lru_cache: guards the cached answer, which is repeated on every call. So a cleared
    or outdated cache gives eager's answer."""
    values = [*args, *kwargs.values()]
    odd = [value for value in values if not (is_constant(value) or isinstance(value, _CODE))]
    if not odd:
        _check_miss(tracer, cached, args, kwargs)
        return _ask(tracer, query, _question(tracer, cached, args, kwargs))
    if all(isinstance(value, torch.Tensor) and torch_private.is_fake(value) for value in odd):
        return tracer.calls.prepare(
            cached.__wrapped__, args, kwargs
        )  # a new tensor is never in a cache
    first = args[0] if args else None
    if (
        len(odd) == 1
        and first is odd[0]
        and not tracer.provenance.is_fresh(first)
        and tracer.operators.is_identity_comparable(first)
    ):
        _check_miss(tracer, cached, args, kwargs)
        return _ask(tracer, applied, _question(tracer, cached, args[1:], kwargs, _WithRest), first)
    tracer.break_graph(
        "native_python", f"the cached function {cached.__qualname__} is called with objects as keys"
    )


def _question(
    tracer: Tracing,
    cached: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    kind: Any = functools.partial,
) -> Any:
    """Returns the call as an object, one per distinct call, so that it is guarded once."""
    values = (*args, *kwargs.values())
    handle = (kind, id(cached), len(args), values, repr(values), tuple(kwargs))
    known = tracer.native_calls.questions.get(handle)
    if known is None:
        known = tracer.native_calls.questions[handle] = kind(cached, *args, **kwargs)
    return known


def _ask(tracer: Tracing, question: Any, *parts: Any) -> Any:
    try:
        return question(tracer, *parts)
    except Exception as error:
        tracer.break_graph("native_python", f"a cached function raised {type(error).__name__}")


def _check_miss(tracer: Tracing, cached: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Breaks the graph on a cache miss while side effects are pending, since the function then runs
    for real. Exempt are typing's functions, which read only their arguments (torch's profiler looks
    up an `Optional["..."]` in an optimizer's first step)."""
    if not tracer.effects.changes or getattr(cached.__wrapped__, "__globals__", None) is vars(
        typing
    ):
        return
    key: Any = tuple(args)
    if len(args) == 1 and type(args[0]) in (int, str):
        key = args[0]
    held = [r for r in gc.get_referents(cached) if type(r) is dict and r is not cached.__dict__]
    if kwargs or cached.cache_parameters()["typed"] or not any(key in table for table in held):
        tracer.break_graph(
            "native_python",
            f"the cached function {cached.__qualname__} runs after a change of state",
        )


CALLED_TYPES.update({
    # functools.cmp_to_key's key function: its keys call back into the tracer.
    type(functools.cmp_to_key(lambda a, b: 0)): lambda tracer, function, args,
    kwargs: function(*args, **kwargs),
    functools.partial: _call_partial,
    weakref.ReferenceType: _call_weakref,
    functools._lru_cache_wrapper: _call_cached,
    operator.itemgetter: call_itemgetter,
    operator.attrgetter: call_attrgetter,
    operator.methodcaller: call_methodcaller,
})  # fmt: skip


# -- Python functions recognized by their code
# ---------------------------------------------------


def _call_generic(tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a functools.singledispatch function."""
    if not args:
        raise TypeError(f"{function.__name__} requires at least 1 positional argument")
    return tracer.calls.prepare(_implementation(tracer, function.dispatch, args[0]), args, kwargs)


def _dispatch(tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``generic.dispatch(cls)``: guards the registry's answer."""
    return query(tracer, functools.partial(function, *args, **kwargs))


def _implementation(tracer: Tracing, dispatch: Any, argument: Any) -> Any:
    return query(
        tracer, functools.partial(dispatch, tracer.attributes.getattr(argument, "__class__"))
    )


def _call_wrapped(tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """recursive_repr: the text of an object, which a thread does not ask for twice."""
    return tracer.calls.prepare(function.__wrapped__, args, kwargs)


def _stand_in(replacement: Any) -> Any:
    return lambda tracer, function, args, kwargs: tracer.calls.prepare(replacement, args, kwargs)


_generic: Any = functools.singledispatch(lambda value: value)
CALLED_CODES[_generic.__code__] = _call_generic
CALLED_CODES[_generic.dispatch.__code__] = _dispatch
for _maker in (
    reprlib.recursive_repr(),
    getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr()),
):
    CALLED_CODES[_maker(lambda self: "").__code__] = _call_wrapped
CALLED_CODES[functools.cached_property.__get__.__code__] = _stand_in(polyfills.cached_property_get)
