"""copy.copy and copy.deepcopy.

Two references to one object become two references to one copy. User ``__copy__`` and
``__deepcopy__`` are interpreted; other copy protocols (``__reduce__``, ``__getstate__``) break the
graph.
"""

from __future__ import annotations

import collections
import copy
import copyreg
import enum
import types
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.value_kinds import IDENTITY_TYPES, is_constant
from tracer_core.native_effects.effects import special
from tracer_core.trace.attribute_lookup import has_python
from tracer_core.trace.tracer import Tracer

_ITSELF = (*IDENTITY_TYPES, types.ModuleType, types.BuiltinFunctionType, enum.Enum, torch.Generator)
_DESCRIBES_ITSELF = (
    "__reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __getnewargs_ex__ __new__"
)
_DICTS = (dict, collections.OrderedDict)
#: The memos of the copies in progress, which ``__deepcopy__`` methods are given and give back.
_MEMOS: list[dict[int, Any]] = []


@special(copy.copy)
def shallow(tracer: Tracer, obj: Any) -> Any:
    if is_constant(obj) or isinstance(obj, _ITSELF) or type(obj) is tuple:
        return obj
    method = tracer.entries.python_method(obj, "__copy__")
    if method is not None:
        return tracer.calls.call_value(method, [obj], {})
    if isinstance(obj, torch.Tensor):
        tracer.break_graph(
            "unsupported_value", "copy.copy of a tensor: another tensor on the same memory"
        )
    if type(obj) in (list, set, bytearray, collections.deque, *_DICTS) and not _attributes(obj):
        tracer.native_calls.native_reads(obj)
        return copy.copy(obj)
    return _of_object(tracer, obj, lambda value: value)


@special(copy.deepcopy)
def deep(tracer: Tracer, x: Any, memo: Any = None) -> Any:
    if memo is None:
        _MEMOS.append({})
        try:
            return _deep(tracer, x, _MEMOS[-1])
        finally:
            _MEMOS.pop()
    if not any(memo is item for item in _MEMOS):
        tracer.break_graph("native_python", "copy.deepcopy() with a memo of the program's")
    return _deep(tracer, x, memo)


def _deep(tracer: Tracer, obj: Any, memo: dict[int, Any]) -> Any:
    if id(obj) in tracer.scalars.opaque:
        return obj
    obj = tracer.scalars.concrete(obj)
    if is_constant(obj) or isinstance(obj, _ITSELF):
        return obj
    if id(obj) in memo:
        return memo[id(obj)]
    tracer.names.keep_alive(obj)
    if isinstance(obj, torch.Tensor):
        items = _tensor(tracer, obj)
    elif type(obj) is list:
        items = memo[id(obj)] = []
        for i in range(tracer.reads.length(obj)):
            items.append(_deep(tracer, tracer.reads.list_item(obj, i), memo))
    elif type(obj) is tuple:
        items = tuple(_deep(tracer, tracer.reads.list_item(obj, i), memo) for i in range(len(obj)))
        if all(a is b for a, b in zip(items, obj, strict=True)):
            items = obj
        items = memo.get(id(obj), items)
    elif type(obj) in _DICTS and not _attributes(obj):
        items = memo[id(obj)] = type(obj)()
        for key in tracer.reads.keys(obj):
            value = _deep(tracer, tracer.reads.copied_entry(obj, key), memo)
            items[_deep(tracer, key, memo)] = value
    elif type(obj) in (set, bytearray, collections.deque):
        tracer.native_calls.native_reads(obj)
        if type(obj) is not bytearray and not all(map(is_constant, obj)):
            tracer.break_graph(
                "native_python", f"a {type(obj).__name__} of objects is copied deeply"
            )
        items = copy.copy(obj)
    elif (method := tracer.entries.python_method(obj, "__deepcopy__")) is not None:
        items = tracer.calls.call_value(method, [obj, memo], {})
    else:
        items = _of_object(tracer, obj, lambda value: _deep(tracer, value, memo), memo)
    memo[id(obj)] = items
    return items


def _attributes(obj: Any) -> Any:
    """Returns the attributes that a program has set on an OrderedDict."""
    return getattr(obj, "__dict__", None)


def _of_object(tracer: Tracer, obj: Any, value_of: Any, memo: dict[int, Any] | None = None) -> Any:
    """Copies an object whose state is its ``__dict__``, without calling ``__init__``."""
    cls = type(obj)
    simple = cls.__dictoffset__ and not any(getattr(base, "__slots__", ()) for base in cls.__mro__)
    own = any(has_python(tracer.entries.special(cls, name)) for name in _DESCRIBES_ITSELF.split())
    registered = cls in copyreg.dispatch_table or isinstance(obj, torch.nn.Module)
    if (
        not simple
        or own
        or registered
        or tracer.entries.special(cls, "__new__") is not object.__new__
    ):
        tracer.break_graph("native_python", f"a {cls.__name__} is copied")
    copied = object.__new__(cls)
    if memo is not None:
        memo[id(obj)] = copied
    namespace = tracer.attributes.getattr(obj, "__dict__")
    for name in tracer.reads.keys(namespace):
        copied.__dict__[name] = value_of(tracer.reads.copied_entry(namespace, name))
    return copied


def _tensor(tracer: Tracer, obj: torch.Tensor) -> Any:
    """Clones a tensor that owns all of its memory and needs no gradient."""
    if torch_private.is_fake(obj):
        tracer.break_graph("unsupported_value", "copy.deepcopy of an intermediate tensor")
    full = (
        obj.is_contiguous() and obj.untyped_storage().nbytes() == obj.numel() * obj.element_size()
    )
    if type(obj) is not torch.Tensor or obj.requires_grad or obj.__dict__ or not full:
        tracer.break_graph("unsupported_value", "copy.deepcopy of a parameter or of a view")
    return tracer.native_calls.native(torch.Tensor.clone, obj)
