"""Weak references made by the tracer, told apart from the program's.

The tracer's own caches must not look like a weak reference through which the program could observe
an object's finalization (a graph break), and must not keep alive what the program drops.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
import types
import typing
import weakref
from typing import Any

import torch

from tracer_core.guards.object_layout import HEAP_TYPE, flags, namespace, weak_reference_offset
from tracer_core.limits import MAX_WRAPPERS


class OwnReference(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that the tracer made."""

    __slots__ = ()


_NOT_CLEARED = (torch.Tensor, typing.ParamSpecArgs, typing.ParamSpecKwargs)


def refers_weakly(obj: Any) -> bool:
    """Returns whether guards refer to an object weakly. To tensors they do not:
    ``torch.utils.swap_tensors`` refuses tensors with weak references. To parts of a ParamSpec they
    do not: CPython 3.12 and 3.13 free them without clearing their weak references."""
    kind = type(obj)
    return bool(weak_reference_offset(kind)) and not issubclass(kind, _NOT_CLEARED)


class OwnDict:
    """Leads to the ``__dict__`` of an object that guards refer to weakly. Calling it returns the
    dictionary."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Any) -> None:
        self._owner = OwnReference(owner)

    def __call__(self) -> Any:
        return object.__getattribute__(self._owner(), "__dict__")


class Mortal:
    """Stands for a function, class or member of an enumeration that its cache entry does not keep
    alive."""

    __slots__ = ("reference", "_text")

    def __init__(self, obj: Any, text: str) -> None:
        self.reference, self._text = OwnReference(obj), text

    def __repr__(self) -> str:
        return self._text


_MORTAL = (
    type, types.FunctionType, types.BuiltinFunctionType, functools._lru_cache_wrapper, enum.Enum,
)  # fmt: skip


def held(obj: Any) -> Any:
    """Returns a `Mortal` in place of a function or class that may die before its cache entry; of a
    tuple, one with its items so. Modules keep those alive that they have under their names."""
    if type(obj) is tuple:
        items = tuple(map(held, obj))
        return obj if all(map(operator.is_, items, obj)) else items
    if not isinstance(obj, _MORTAL) or not refers_weakly(obj) or outlives_entries(obj):
        return obj
    return Mortal(obj, _text(obj))


def _text(obj: Any) -> str:
    """Returns the text of a function, class or member of an enumeration. Runs no user code."""
    if isinstance(obj, enum.Enum):
        name = object.__getattribute__(obj, "__dict__").get("_name_")
        return f"{type.__repr__(type(obj))}.{name}"
    return type.__repr__(obj) if isinstance(obj, type) else repr(obj)


def object_of(obj: Any) -> Any:
    """Returns the object that `held` was called with; None in place of one that died."""
    if type(obj) is tuple:
        return tuple(map(object_of, obj))
    return obj.reference() if type(obj) is Mortal else obj


def outlives_entries(obj: Any) -> bool:
    """Returns whether a function, class or member of an enumeration lives as long as a module."""
    if not isinstance(obj, _MORTAL):
        return False
    return (isinstance(obj, type) and not flags(obj) & HEAP_TYPE) or _has_import_path(obj)


def _has_import_path(obj: Any) -> bool:
    """Returns whether a module leads to a function or class by its names, perhaps through the
    functions that wrap it; to a member of an enumeration, by those of its class. Runs no user
    code."""
    if isinstance(obj, enum.Enum):
        obj = type(obj)
    if type(obj) is types.BuiltinFunctionType and obj.__self__ is not None:
        owner = obj.__self__
        if not isinstance(owner, types.ModuleType) or vars(owner).get(obj.__name__) is obj:
            return True  # an object's or a module's
    described = type.__dict__ if isinstance(obj, type) else None
    try:
        if described is None:
            module, name = obj.__module__, obj.__qualname__
        else:
            name = described["__qualname__"].__get__(obj)
            module = described["__module__"].__get__(obj)
        func: Any = sys.modules[module]
        for part in name.split("."):
            func = (namespace(func) if isinstance(func, type) else vars(func))[part]
        for _ in range(MAX_WRAPPERS):
            if func is obj:
                return True
            func = func.__func__ if isinstance(func, _METHODS) else vars(func)["__wrapped__"]
    except (AttributeError, KeyError, TypeError):
        pass
    return False


_METHODS = (staticmethod, classmethod)


def is_watched(value: Any) -> bool:
    """Whether anything but the tracer has a weak reference to an object."""
    return weakref.getweakrefcount(value) > 0 and bool(references_of_others(value))


def references_of_others(value: Any) -> list[Any]:
    """Returns the weak references to an object that the tracer did not make."""
    return [item for item in weakref.getweakrefs(value) if type(item) is not OwnReference]
