"""Attributes by name (getattr, setattr, ...), and the methods of functions, properties, proxies and
classes, called by name."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import builtins
import collections
import types
import weakref
from collections.abc import Callable
from typing import Any

from tracer_core.compiled_module import CallSlot, CallTable, called_by_torch
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.native_effects.effects import (
    SHALLOW,
    breaks,
    declare,
    special,
    special_each,
    special_rows,
)
from tracer_core.torch_private.module_calls import SLOT
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.guarded_calls import query
from tracer_core.trace.tracer import Tracer

_GENERIC = (list, dict, set, frozenset, tuple, collections.deque, collections.defaultdict)
declare(SHALLOW, [c.__dict__["__class_getitem__"] for c in (*_GENERIC, types.MappingProxyType)])
#: Types of methods written in C; binding one of them reads nothing.
_C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_C_CALLABLES = (*_C_METHODS, types.BuiltinFunctionType, types.MethodWrapperType)
declare(SHALLOW, [types.FunctionType.__get__, type.mro, type.__or__, type.__ror__])
declare(SHALLOW, [vars(kind)["__get__"] for kind in _C_METHODS])
breaks("native_python", "async functions are not captured", [builtins.aiter, builtins.anext])
breaks(
    "unknown_native", "the subclasses of a class are no part of the program", [type.__subclasses__]
)
breaks(
    "unknown_native",
    "the text of an object is its address, which differs between runs",
    [object.__repr__],
)
breaks(
    "side_effect_native",
    "it depends on what else is alive",
    [weakref.getweakrefs, weakref.getweakrefcount],
)


# -- attributes by name --


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        getattr(object(), name)  # raises Python's own error


@special_rows(
    {
        hasattr: (lambda tracer: tracer.attributes.has_attribute,),
        setattr: (lambda tracer: tracer.attribute_writes.setattr,),
        delattr: (lambda tracer: tracer.attribute_writes.delattr,),
        object.__getattribute__: (lambda tracer: tracer.attributes.generic_getattr,),
        type.__getattribute__: (lambda tracer: tracer.attributes.static_class_attribute,),
    }
)
def access(
    tracer: Tracer, method: Callable[[Tracer], Callable[..., Any]], obj: Any, name: Any, *value: Any
) -> Any:
    """An access by the tracer's method for it."""
    _check_name(name)
    return method(tracer)(obj, name, *value)


@special(getattr)
def get_attribute(tracer: Tracer, obj: Any, name: Any, default: Any = ABSENT, /) -> Any:
    _check_name(name)
    try:
        return tracer.attributes.getattr(obj, name)
    except AttributeError:
        if default is ABSENT:
            raise
        return default


@special(object.__setattr__, object.__delattr__)
def set_own_attribute(tracer: Tracer, obj: Any, name: Any, value: Any = ABSENT) -> None:
    _check_name(name)
    tracer.attribute_writes.generic_setattr(obj, name, value)


@special(type.__setattr__, type.__delattr__)
def set_class_attribute(tracer: Tracer, cls: Any, name: Any, value: Any = ABSENT) -> None:
    if not cls.__flags__ & HEAP_TYPE:  # rejected before its name is checked
        tracer.break_graph("unsupported_mutation", f"an attribute of {cls.__name__} is set")
    _check_name(name)
    tracer.attribute_writes.set_class_attribute(cls, name, value)


# -- descriptors --


@special(_abc.get_cache_token)
def cache_token(tracer: Tracer) -> Any:
    return query(tracer, _abc.get_cache_token)


@special(*(vars(k)["__call__"] for k in (types.FunctionType, types.MethodType, *_C_CALLABLES)))
def call(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    return tracer.calls.prepare(function, [*args], kwargs)


@special(CallSlot.__get__)
def module_call(tracer: Tracer, slot: Any, module: Any, owner: Any = None) -> Any:
    """Returns what is called in place of a module's hooks and forward: of a module that `compile`
    has made, nothing, since it is inlined."""
    if module is None or not called_by_torch(module):
        return None
    if type(vars(module)[SLOT]) is CallTable:
        tracer.break_graph("native_python", "Module.compile() of torch has compiled the module")
    return tracer.entries.instance_entry(module, SLOT)


@special(types.MemberDescriptorType.__get__)
def slot_get(tracer: Tracer, slot: Any, obj: Any, owner: Any = None) -> Any:
    if obj is None:
        if owner is None:
            tracer.break_graph("native_python", "the arguments do not fit __get__()")
        return slot
    if slot.__objclass__ not in type(obj).__mro__:
        slot.__get__(obj)  # raises Python's own error
    return tracer.attributes.get_descriptor(slot, obj, type(obj), slot.__name__)


@special(types.MemberDescriptorType.__set__, types.MemberDescriptorType.__delete__)
def slot_set(tracer: Tracer, slot: Any, obj: Any, value: Any = ABSENT) -> None:
    if slot.__objclass__ not in type(obj).__mro__:
        slot.__delete__(obj) if value is ABSENT else slot.__set__(obj, value)  # Python's own error
    tracer.attribute_writes.set_descriptor(slot, obj, slot.__name__, value)


@special(classmethod.__get__, staticmethod.__get__)
def descriptor_get(tracer: Tracer, raw: Any, obj: Any, owner: Any = None) -> Any:
    if obj is None and owner is None:
        tracer.break_graph("native_python", "the arguments do not fit __get__()")
    owner = type(obj) if owner is None else owner
    return tracer.attributes.get_descriptor(raw, obj, owner, "__func__")


@special(property.__get__)
def property_get(tracer: Tracer, held: Any, obj: Any, owner: Any = None) -> Any:
    if obj is None:
        if owner is None:
            tracer.break_graph("native_python", "the arguments do not fit property.__get__()")
        return held
    if held.fget is None:
        tracer.break_graph("native_python", "a property without a getter says its name")
    return tracer.calls.prepare(tracer.attributes.getattr(held, "fget"), [obj], {})


@special(property.__set__)
def property_set(tracer: Tracer, held: Any, obj: Any, value: Any) -> Any:
    if held.fset is None:
        tracer.break_graph("native_python", "a property without a setter says its name")
    tracer.calls.call_value(tracer.attributes.getattr(held, "fset"), [obj, value], {})


@special(property.__delete__)
def property_delete(tracer: Tracer, held: Any, obj: Any) -> None:
    if held.fdel is None:
        tracer.break_graph("native_python", "a property without a deleter says its name")
    tracer.calls.call_value(held.fdel, [obj], {})


# -- read-only views of dictionaries --

_PROXIED = (
    "get keys values items copy __getitem__ __contains__ __len__ __iter__ __reversed__ __eq__"
    " __ne__ __or__ __ror__"
)
#: Methods that a proxy turns into whole operators.
_PROXIED_OPERATORS: dict[str, Callable[..., Any]] = {
    "__eq__": lambda tracer, mine, other: tracer.operators.compare("==", mine, other),
    "__ne__": lambda tracer, mine, other: tracer.operators.compare("!=", mine, other),
    "__or__": lambda tracer, mine, other: tracer.operators.binary("|", mine, other),
    "__ror__": lambda tracer, mine, other: tracer.operators.binary("|", other, mine),
}


@special(types.MappingProxyType)
def proxy(tracer: Tracer, mapping: Any) -> Any:
    return types.MappingProxyType(mapping)


@special_each(*(types.MappingProxyType.__dict__[name] for name in _PROXIED.split()))
def proxied(tracer: Tracer, method: Any, proxy: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a mappingproxy: the dictionary's own."""
    mapping, *rest = map(tracer.attributes.unproxied, (proxy, *args))
    if method.__name__ in _PROXIED_OPERATORS:
        return _PROXIED_OPERATORS[method.__name__](tracer, mapping, *rest)
    bound = tracer.attributes.getattr(mapping, method.__name__)
    return tracer.calls.call_value(bound, rest, kwargs)
