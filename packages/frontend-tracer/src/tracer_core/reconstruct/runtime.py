"""What generated code calls to make values again that no expression makes.

In: parts of a value, as `rebuild` wrote them down. Out: the value. What always holds: no method of
a user's class runs.
"""

from __future__ import annotations

import sys
import types
from typing import Any

#: Type of a dictionary's iterator -> the view that it goes over; backwards where it starts with a
#: minus.
DICT_ITERATORS: dict[type, str] = {
    **{type(iter(getattr({}, name)())): name for name in ("keys", "values", "items")},
    **{type(reversed(getattr({}, name)())): f"-{name}" for name in ("keys", "values", "items")},
}


def _over(mapping: dict[Any, Any], view: str) -> Any:
    """A new iterator of one of these types."""
    seen = getattr(mapping, view.removeprefix("-"))()
    return reversed(seen) if view.startswith("-") else iter(seen)


def dict_iterator(mapping: dict[Any, Any], view: str, consumed: int, stale: bool) -> Any:
    """An iterator over a dictionary that has given `consumed` items. stale: its dictionary has
    changed size.
    """
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


def deque_iterator(kind: Any, held: Any, consumed: int, stale: bool) -> Any:
    """An iterator over a deque that has given `consumed` items. stale: the deque has changed since
    it was made.
    """
    iterator = kind(held, consumed)
    if stale and held:
        held.append(held.pop())
    return iterator


def proxy_of(mapping: Any) -> Any:
    """A read-only view of a dictionary; the entries of a class are given as one."""
    return mapping if type(mapping) is types.MappingProxyType else types.MappingProxyType(mapping)


def is_stale(iterator: Any) -> bool:
    """Whether an iterator with items left refuses to go on; it is advanced."""
    try:
        next(iterator)
    except RuntimeError:
        return True
    return False


def is_module_global(obj: Any) -> bool:
    """Whether the module that defines an object's class holds it as one of its names: a sentinel,
    not a value.
    """
    module = sys.modules.get(type(obj).__module__)
    return module is not None and any(value is obj for value in list(vars(module).values()))


def spent_iterator(kind: type) -> Any:
    """A dictionary iterator of this type that has ended."""
    iterator = _over({}, DICT_ITERATORS[kind])
    next(iterator, None)
    return iterator


def at_end(iterator: Any) -> bool:
    """Whether a dictionary iterator without items left has seen all of its dictionary; it is spent
    afterwards.
    """
    try:
        next(iterator, None)
    except RuntimeError:
        return False
    return True


def new_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception of this class with these arguments, made by the constructors of its base written
    in C.
    """
    made: BaseException = _c_method(kind, "__new__")(kind, *args)
    try:
        _c_method(kind, "__init__")(made, *args)
    except TypeError:
        made.args = args  # the class takes other arguments than those that it stored
    return made


def _c_method(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        found = base.__dict__.get(name)
        if found is not None and not isinstance(found, (types.FunctionType, staticmethod)):
            return getattr(base, name)
    raise TypeError(f"{kind.__qualname__} has no {name} written in C")


def own(obj: Any) -> dict[str, Any]:
    """An object's own dictionary, whatever its class says."""
    found: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    return found


def type_variable(
    kind: Any, name: str, module: Any, constraints: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """A TypeVar or ParamSpec made by a call."""
    made = kind(name, *constraints, **options)
    made.__module__ = module
    return made
