"""Functions that generated code calls to reconstruct values that no expression makes.

Their arguments are the parts of a value that `Rebuilder` wrote down. No method of a user's class
runs.
"""

from __future__ import annotations

import collections
import functools
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, cast

#: Type of a dictionary's iterator -> the view that it iterates over; a leading minus: in reverse.
DICT_ITERATORS: dict[type, str] = {
    **{type(iter(getattr({}, name)())): name for name in ("keys", "values", "items")},
    **{type(reversed(getattr({}, name)())): f"-{name}" for name in ("keys", "values", "items")},
}


def _over(mapping: dict[Any, Any], view: str) -> Any:
    """Returns a new iterator over a view of a dictionary."""
    seen = getattr(mapping, view.removeprefix("-"))()
    return reversed(seen) if view.startswith("-") else iter(seen)


def dict_iterator(mapping: dict[Any, Any], view: str, consumed: int, stale: bool) -> Any:
    """Returns an iterator over a dictionary that has given `consumed` items. stale: its dictionary
    has changed size."""
    if stale:
        marker = object()
        mapping[marker] = None
        iterator = _over(mapping, view)
        del mapping[marker]
        return iterator
    iterator = _over(mapping, view)
    for _ in range(consumed):
        next(iterator)
    return iterator


#: The views of an OrderedDict, whose iterators are of one type.
ORDERED_VIEWS = ("keys", "values", "items", "-keys", "-values", "-items")


def ordered_over(mapping: Any, view: str) -> Any:
    """Returns a new iterator over a view of an OrderedDict."""
    seen = getattr(collections.OrderedDict, view.removeprefix("-"))(mapping)
    return reversed(seen) if view.startswith("-") else iter(seen)


def ordered_iterator(mapping: Any, view: str, consumed: int) -> Any:
    """Returns an iterator over an OrderedDict that has given `consumed` items."""
    iterator = ordered_over(mapping, view)
    for _ in range(consumed):
        next(iterator)
    return iterator


def spent_ordered_iterator() -> Any:
    """Returns an exhausted iterator over an OrderedDict."""
    iterator = iter(collections.OrderedDict[Any, Any]())
    next(iterator, None)
    return iterator


def deque_iterator(kind: Any, held: Any, consumed: int, stale: bool) -> Any:
    """Returns an iterator over a deque that has given `consumed` items. stale: the deque has
    changed since the iterator was made."""
    iterator = kind(held, consumed)
    if stale and held:
        held.append(held.pop())
    elif stale:
        held.append(None)
        held.clear()
    return iterator


def view_of(method: Any, entries: Any) -> Any:
    """Returns a view of a dictionary. The one of a class is only reached through a proxy."""
    if type(entries) is types.MappingProxyType:
        return getattr(entries, method.__name__)()
    return method(entries)


def proxy_of(mapping: Any) -> Any:
    """Returns a read-only view of a dictionary; a class's entries come as one already."""
    return mapping if type(mapping) is types.MappingProxyType else types.MappingProxyType(mapping)


def is_stale(iterator: Any) -> bool:
    """Advances an iterator; returns whether it raised because its container changed."""
    try:
        next(iterator, None)
    except RuntimeError:
        return True
    return False


def called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a generator function."""
    return function(*args, **kwargs)


def is_module_global(obj: Any, definer: Any = None) -> bool:
    """Returns whether the module that defines an object's class, or another definer, has the object
    as a global: it is then a sentinel, not a value."""
    module = sys.modules.get(
        getattr(type(obj) if definer is None else definer, "__module__", None) or ""
    )
    return module is not None and any(value is obj for value in list(vars(module).values()))


def spent_iterator(kind: type) -> Any:
    """Returns an exhausted dictionary iterator of this type."""
    iterator = _over({}, DICT_ITERATORS[kind])
    next(iterator, None)
    return iterator


def at_end(iterator: Any) -> bool:
    """Returns whether a dictionary iterator without items left has seen its whole dictionary;
    exhausts the iterator."""
    try:
        next(iterator, None)
    except RuntimeError:
        return False
    return True


def new_exception(
    kind: type[BaseException], value: tuple[Any, ...], args: tuple[Any, ...]
) -> BaseException:
    """Returns an exception of this class with these `args`, made by the constructors of its C base.
    value: what ``__new__`` of that takes."""
    exception: BaseException = _c_method(kind, "__new__")(kind, *value)
    try:
        _c_method(kind, "__init__")(exception, *args)
    except TypeError:
        exception.args = args  # the class takes other arguments than it stored
    return exception


def _c_method(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        result = base.__dict__.get(name)
        if result is not None and not isinstance(result, (types.FunctionType, staticmethod)):
            return getattr(base, name)
    raise TypeError(f"{kind.__qualname__} has no {name} written in C")


def own(obj: Any) -> dict[str, Any]:
    """Returns an object's own dictionary, ignoring its class's attributes."""
    result: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    return result


def set_own(obj: Any, namespace: dict[str, Any]) -> None:
    """Makes a dictionary an object's own."""
    object.__setattr__(obj, "__dict__", namespace)


def alias_of(kind: Any, origin: Any, args: tuple[Any, ...], unpacked: bool) -> Any:
    """Returns a generic alias: ``list[int]``, or ``*tuple[int]`` if unpacked."""
    alias: Any = types.GenericAlias.__new__(kind, origin, args)
    return next(iter(alias)) if unpacked else alias


_IN_C = (types.WrapperDescriptorType, types.MethodDescriptorType)


def bound_in_c(obj: Any, owner: type | None, name: str) -> Any:
    """Returns a method written in C bound to an object: that of its class `owner`, which a subclass
    may override; of the first class that has one, if `owner` is None."""
    lineage = type(obj).__mro__ if owner is None else (owner,)
    result = (cls.__dict__.get(name) for cls in lineage)
    raw: Any = next((item for item in result if isinstance(item, _IN_C)), None)
    return getattr(obj, name) if raw is None else raw.__get__(obj)


def _joined(args: tuple[Any, ...]) -> Any:
    """Returns ``A | B``."""
    return functools.reduce(operator.or_, args)


def _subscribed(args: tuple[Any, ...]) -> Any:
    """Returns ``Union[A, B]``, which since 3.14 is the same type as ``A | B`` and has members that
    know no ``|``."""
    return typing.Union[args]


def union_maker(union: Any) -> Callable[[tuple[Any, ...]], Any] | None:
    """Returns the function that makes a union of the very members that `union` has."""
    for maker in (
        (_subscribed, _joined) if cast(Any, typing.Union) is types.UnionType else (_joined,)
    ):
        try:
            result = maker(union.__args__)
        except TypeError:
            continue
        same = map(operator.is_, getattr(result, "__args__", ()), union.__args__)
        if type(result) is types.UnionType and list(same) == [True] * len(union.__args__):
            return maker
    return None


def has_default(variable: Any) -> bool:
    """Returns whether a type variable has a default (Python 3.13)."""
    return sys.version_info >= (3, 13) and bool(variable.has_default())


def type_variable(
    kind: Any, name: str, module: Any, constraints: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Returns a TypeVar or ParamSpec as made by a call."""
    result = kind(name, *constraints, **options)
    result.__module__ = module
    return result


# side effects

_ORDERED = collections.OrderedDict
_DEQUE = collections.deque


def _assign_dict(target: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    dict.clear(target)
    dict.update(target, items)


def _assign_ordered(target: Any, items: list[tuple[Any, Any]]) -> None:
    _ORDERED.clear(target)
    for key, value in items:
        _ORDERED.__setitem__(target, key, value)


def _remove_key(target: dict[Any, Any], key: Any) -> None:
    dict.pop(target, key, None)


def _remove_ordered(target: Any, key: Any) -> None:
    _ORDERED.pop(target, key, None)


def _assign_list(target: list[Any], items: list[Any]) -> None:
    list.__setitem__(target, slice(None), items)


def _assign_set(target: set[Any], items: list[Any]) -> None:
    set.clear(target)
    set.update(target, items)


def _assign_deque(target: Any, items: list[Any]) -> None:
    _DEQUE.clear(target)
    _DEQUE.extend(target, items)


def _assign_buffer(target: Any, items: Any) -> None:
    target[:] = items


#: Names of these functions in the generated module.
NAMES: dict[str, Any] = {
    "dict_assign": _assign_dict, "dict_set": dict.__setitem__, "dict_remove": _remove_key,
    "ordered_assign": _assign_ordered, "ordered_set": _ORDERED.__setitem__,
    "ordered_remove": _remove_ordered, "list_assign": _assign_list, "list_set": list.__setitem__,
    "list_extend": list.extend, "set_assign": _assign_set, "set_update": set.update,
    "set_remove": set.difference_update, "list": list, "dict_of": dict.fromkeys,
    "deque_assign": _assign_deque, "deque_extend": _DEQUE.extend, "deque_set": _DEQUE.__setitem__,
    "buffer_assign": _assign_buffer, "own": own, "set_own": set_own, "class_set": type.__setattr__,
    "class_delete": type.__delattr__,
}  # fmt: skip
