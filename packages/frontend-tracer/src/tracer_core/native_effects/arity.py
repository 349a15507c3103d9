"""Checks the number and keyword names of a C function's arguments against its signature.

A call that does not fit runs for real, so that Python raises its own error. Without a signature,
every call fits here, and the signature of the row's handler decides.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Collection, Sequence
from typing import Any

_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


#: Slots whose argument count, with the receiver, the language fixes; some have no signature.
_SLOTS = {
    **dict.fromkeys(("__len__", "__iter__", "__next__", "__hash__", "__repr__", "__reversed__",
    "__bool__"), 1),
    **dict.fromkeys((
        "__getitem__", "__contains__", "__delitem__", "__eq__", "__ne__", "__lt__", "__le__",
        "__gt__", "__ge__", "__add__", "__and__", "__or__", "__sub__", "__xor__",
    ), 2),
    "__setitem__": 3,
}  # fmt: skip


@functools.cache
def _limits(function: Any) -> tuple[int, float, frozenset[str] | None, frozenset[str]] | None:
    """Returns (fewest, most positional arguments, keyword names or None for any, keywords that may
    be positional)."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    kinds = [p.kind for p in parameters]
    needed = sum(p.kind in _POSITIONAL and p.default is p.empty for p in parameters)
    most = (
        float("inf")
        if inspect.Parameter.VAR_POSITIONAL in kinds
        else sum(k in _POSITIONAL for k in kinds)
    )
    names = None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(
        p.name for p in parameters if p.kind in _NAMED)  # fmt: skip
    both = frozenset(
        p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )
    return needed, most, names, both


def _is_a(value: Any, owner: type) -> bool:
    return isinstance(value, owner) if type(owner) is type else owner in type(value).__mro__


def fits(function: Any, args: Sequence[Any], keywords: Collection[str]) -> bool:
    """Returns whether a function accepts these arguments: their number, and the type of a method's
    receiver."""
    owner = getattr(function, "__objclass__", None)
    if isinstance(function, types.ClassMethodDescriptorType):
        return bool(args) and isinstance(args[0], type) and owner in args[0].__mro__
    if isinstance(getattr(function, "__self__", None), type):
        return True  # whether the class is among the arguments is unknown
    if (
        isinstance(owner, type)
        and type(function) in _METHODS
        and not (args and _is_a(args[0], owner))
    ):
        return False
    count = len(args)
    wanted = _SLOTS.get(getattr(function, "__name__", ""))
    if wanted is not None and type(function) in _METHODS:
        return count == wanted and not keywords
    try:
        limits = _limits(function)
    except TypeError:  # a callable without a hash
        return True
    if limits is None:
        return True
    needed, most, names, both = limits
    if names is not None and not names.issuperset(keywords):
        return False
    return needed <= count + len(both.intersection(keywords)) and count <= most
