"""Methods of functions, properties, proxies and classes, called by name."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import builtins
import collections
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

from tracer_core.natives.effects import SHALLOW, breaks, declare, special
from tracer_core.natives.queries import query
from tracer_core.natives.tracing import Tracing

_GENERIC = (
    list,
    dict,
    set,
    frozenset,
    tuple,
    collections.deque,
    collections.defaultdict,
    types.MappingProxyType,
)
_PROXIED = (
    "get keys values items copy __getitem__ __contains__ __len__ __iter__ __reversed__ __eq__"
    " __ne__ __or__ __ror__"
)

_PROXIED_OPERATORS: dict[str, Callable[..., Any]] = {
    "__eq__": lambda tracer, mine, other: tracer.operators.compare("==", mine, other),
    "__ne__": lambda tracer, mine, other: tracer.operators.compare("!=", mine, other),
    "__or__": lambda tracer, mine, other: tracer.operators.binary("|", mine, other),
    "__ror__": lambda tracer, mine, other: tracer.operators.binary("|", other, mine),
}

declare(SHALLOW, [cls.__dict__["__class_getitem__"] for cls in _GENERIC])
declare(SHALLOW, [types.FunctionType.__get__, type.mro, type.__or__, type.__ror__])
breaks("native_python", "async functions are not captured", [builtins.aiter, builtins.anext])
breaks(
    "unknown_native", "the subclasses of a class are no part of the program", [type.__subclasses__]
)
breaks(
    "unknown_native",
    "the text of an object is its address, which differs between runs",
    [object.__repr__],
)
breaks("side_effect_native", "it depends on what else is alive", [weakref.getweakrefs])
special(_abc.get_cache_token)(lambda tracer, args, kwargs: query(tracer, _abc.get_cache_token))


@special(types.FunctionType.__call__, types.MethodType.__call__)
def call(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.calls.prepare(args[0], args[1:], kwargs)


@special(property.__get__)
def property_get(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    held, obj, *owner = args
    if obj is None:
        if owner in ([], [None]):
            tracer.break_graph("native_python", "the arguments do not fit property.__get__()")
        return held
    if held.fget is None:
        tracer.break_graph("native_python", "a property without a getter says its name")
    return tracer.calls.prepare(tracer.attributes.getattr(held, "fget"), [obj], {})


@special(property.__set__)
def property_set(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    held, obj, value = args
    if held.fset is None:
        tracer.break_graph("native_python", "a property without a setter says its name")
    tracer.calls.call_value(tracer.attributes.getattr(held, "fset"), [obj, value], {})


@special(types.MappingProxyType)
def proxy(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    (mapping,) = args
    if type(mapping) is dict and not tracer.provenance.is_fresh(mapping):
        tracer.break_graph(
            "unsupported_value", "a read-only view of a dictionary from before this segment is made"
        )
    return types.MappingProxyType(mapping)


def _proxied(name: str) -> Callable[..., Any]:
    """Makes the handler of a mappingproxy method: the dictionary's own."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        proxy, *rest = args
        (mapping,) = gc.get_referents(proxy)
        if not tracer.provenance.is_fresh(proxy) or not isinstance(mapping, dict):
            tracer.break_graph(
                "unsupported_value", "native code reads the contents of a mappingproxy"
            )
        rest = [
            gc.get_referents(a)[0] if isinstance(a, types.MappingProxyType) else a for a in rest
        ]
        if name in _PROXIED_OPERATORS:  # a proxy turns these into whole operators
            return _PROXIED_OPERATORS[name](tracer, mapping, *rest)
        return tracer.calls.call_value(getattr(dict, name), [mapping, *rest], kwargs)

    return handler


for _name in _PROXIED.split():
    special(types.MappingProxyType.__dict__[_name])(_proxied(_name))
