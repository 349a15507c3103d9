"""``__init__`` of the built-in containers, as subclasses call it, and weak references."""

from __future__ import annotations

import array
import collections
import types
import weakref
from typing import Any

from tracer_core.natives.effects import MUTATES, PURE, breaks, declare, effect_of, special
from tracer_core.natives.tracing import Tracing


def _items(tracer: Tracing, args: list[Any]) -> list[Any]:
    return tracer.containers.spread(args[0]) if args else []


@special(list.__init__)
def list_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, *rest = args
    items = _items(tracer, rest)
    tracer.side_effects.before_change(target)
    list.__init__(target, items)


@special(set.__init__)
def set_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, *rest = args
    items = tracer.calls.call_value(set, rest, {})  # compares the members as the program would
    tracer.side_effects.before_change(target)
    set.__init__(target, items)


@special(collections.deque.__init__)
def deque_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, *rest = args
    if not tracer.provenance.is_fresh(target):
        tracer.break_graph("unsupported_mutation", "a deque is initialised again")
    if "iterable" in kwargs:
        rest = [kwargs.pop("iterable"), *rest]
    collections.deque.__init__(target, _items(tracer, rest), *rest[1:], **kwargs)


@special(dict.__init__, collections.OrderedDict.__init__)
def dict_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _update(tracer, args[0], args[1:], kwargs)


@special(collections.defaultdict.__init__)
def defaultdict_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, *rest = args
    if not tracer.provenance.is_fresh(target):
        tracer.break_graph("unsupported_mutation", "a defaultdict is initialised again")
    collections.defaultdict.__init__(target, *rest[:1])
    _update(tracer, target, rest[1:], kwargs)


def _update(tracer: Tracing, target: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    base = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
    row = effect_of(base.update)
    assert row is not None and row.handler is not None
    row.handler(tracer, [target, *args], kwargs)


@special(weakref.ref)
def weak_reference(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """References only objects that outlive the call: a trace does not know when others die."""
    if (
        args
        and tracer.provenance.is_fresh(args[0])
        and not isinstance(args[0], type)
        and not _to_itself(tracer)
    ):
        tracer.break_graph("finalizer", "a weak reference to a new object is made")
    return weakref.ref(*args)


def _to_itself(tracer: Tracing) -> bool:
    """Returns whether a weak dictionary or set under construction refers to itself."""
    frame = tracer.frames[-1]
    return (
        frame.globals.get("__name__") in ("weakref", "_weakrefset")
        and frame.code.raw.co_name == "__init__"
    )


def _changes(function: Any) -> Any:
    """Makes the handler of a method that mutates a weak dictionary or set. One from before the
    trace may lose members at any time, so its old contents cannot be restored."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not tracer.provenance.is_fresh(args[0]):
            tracer.break_graph("finalizer", f"{function.__qualname__} of one that existed before")
        frame = tracer.calls.frame_of(function, args, kwargs)
        return tracer.calls.run_nested(frame)

    return handler


_CHANGING = (
    "__setitem__", "__delitem__", "pop", "popitem", "setdefault", "update", "clear", "add",
    "discard", "remove", "__ior__",
    "__iand__", "__isub__", "__ixor__", "difference_update", "intersection_update",
    "symmetric_difference_update",
)  # fmt: skip
for _cls in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet):
    for _name in _CHANGING:
        _method = _cls.__dict__.get(_name)
        if isinstance(_method, types.FunctionType):
            special(_method)(_changes(_method))
breaks("finalizer", "it is called when an object dies", [weakref.finalize])


#: array.array: guarded by its whole contents, like a bytearray.
_ARRAY = array.array
declare(PURE, [_ARRAY, *(_ARRAY.__dict__[name] for name in (
    "tobytes", "tolist", "index", "count", "__len__", "__getitem__", "__iter__", "__contains__",
    "__eq__", "__ne__", "__add__", "__mul__"))])  # fmt: skip
declare(MUTATES, [_ARRAY.__dict__[name] for name in (
    "append", "extend", "insert", "pop", "remove", "reverse", "byteswap", "fromlist", "frombytes",
    "__setitem__",
    "__delitem__", "__iadd__", "__imul__")])  # fmt: skip
