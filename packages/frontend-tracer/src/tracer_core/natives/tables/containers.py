"""Methods of lists, dicts, sets, tuples, strings and numbers."""

from __future__ import annotations

import collections
import types
from typing import Any

from tracer_core.interpreter import objects
from tracer_core.interpreter.attributes import ABSENT
from tracer_core.natives.effects import MUTATES, PURE, declare, special

_READERS: dict[type, str] = {
    list: "copy __len__ __iter__ __getitem__ __add__ __mul__ __reversed__ __rmul__",
    tuple: "__len__ __iter__ __getitem__ __add__ __mul__",
    dict: "copy keys values items __len__ __iter__ __or__ __reversed__",
    set: "copy difference intersection isdisjoint issubset issuperset symmetric_difference union __len__"
         " __contains__ __iter__ __eq__ __sub__ __and__ __or__ __xor__",
    frozenset: "copy difference intersection isdisjoint issubset issuperset symmetric_difference union __len__"
               " __contains__ __iter__ __eq__ __sub__ __and__ __or__",
    collections.deque: "copy __len__ __iter__ __getitem__",
    collections.OrderedDict: "copy keys values items __iter__ __reversed__",
}  # fmt: skip
_WRITERS: dict[type, str] = {
    list: "insert pop clear reverse __setitem__ __delitem__",
    dict: "popitem clear",
    set: "discard remove pop clear",
    collections.deque: "appendleft pop popleft clear rotate reverse insert __setitem__ __delitem__",
    collections.OrderedDict: "move_to_end popitem clear",
}
#: Types whose every method reads only immutable values.
_IMMUTABLE = (str, bytes, int, float, complex, bool, range, slice, type(None))


def _methods(cls: type, names: str) -> list[Any]:
    return [cls.__dict__[name] for name in names.split() if name in cls.__dict__]


for _cls, _names in _READERS.items():
    declare(PURE, _methods(_cls, _names))
for _cls, _names in _WRITERS.items():
    declare(MUTATES, _methods(_cls, _names))
for _cls in _IMMUTABLE:
    declare(
        PURE,
        [
            raw
            for name, raw in _cls.__dict__.items()
            if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType))
            and name not in ("join", "format", "__format__", "__getattribute__", "__init__", "format_map", "__str__",
                             "__repr__", "__eq__", "__ne__", "__mod__", "__rmod__")
        ],
    )  # fmt: skip
declare(PURE, [str.__dict__["maketrans"], dict.__dict__["fromkeys"], int.__eq__, str.__eq__, float.__eq__])


@special(list.extend, collections.deque.extend)
def extend(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, iterable = args
    items = tracer.spread(iterable)
    tracer.before_append(target, items)
    type_of = list if isinstance(target, list) else collections.deque
    return type_of.extend(target, items)


def _append(add: Any) -> Any:
    """Adding one value looks at nothing that the container holds."""

    def handler(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target, value = args
        if isinstance(target, set):
            tracer.check_key(value, args[0])
        tracer.before_append(target, [value])
        return add(target, value)

    return handler


for _add in (list.append, collections.deque.append, set.add):
    special(_add)(_append(_add))


@special(dict.__setitem__, collections.OrderedDict.__setitem__)
def store(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, key, value = args
    tracer.check_key(key, target)
    tracer.before_store(target, key)
    _kind(target).__setitem__(target, key, value)


@special(dict.__delitem__, collections.OrderedDict.__delitem__)
def delete(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, key = args
    if not tracer.has_key(target, key):
        raise KeyError(key)
    tracer.before_remove(target, key)
    _kind(target).__delitem__(target, key)


@special(dict.pop, collections.OrderedDict.pop)
def pop(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, key, *rest = args
    tracer.check_key(key, target)
    value = tracer.dict_get(target, key, ABSENT)
    if value is ABSENT:
        if rest or "default" in kwargs:
            return rest[0] if rest else kwargs["default"]
        raise KeyError(key)
    tracer.before_remove(target, key)
    return _kind(target).pop(target, key)


def _kind(target: Any) -> Any:
    """The base whose methods run no user code."""
    return collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict


@special(list.sort)
def sort(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.before_change(args[0])
    ordered = tracer.call_value(sorted, [list(args[0])], kwargs)
    args[0][:] = ordered


@special(dict.get)
def get(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.dict_get(args[0], args[1], args[2] if len(args) > 2 else None)


@special(dict.__getitem__)
def getitem(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = tracer.dict_get(args[0], args[1], ABSENT)
    if value is ABSENT:
        raise KeyError(args[1])
    return value


@special(dict.__contains__)
def contains(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.dict_get(args[0], args[1], ABSENT) is not ABSENT


@special(dict.setdefault, collections.OrderedDict.setdefault)
def setdefault(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, key = args[0], args[1]
    value = tracer.dict_get(target, key, ABSENT)
    if value is not ABSENT:
        return value
    value = args[2] if len(args) > 2 else None
    tracer.check_key(key, target)
    tracer.before_store(target, key)
    _kind(target).__setitem__(target, key, value)
    return value


@special(dict.update, collections.OrderedDict.update)
def update(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    items: dict[Any, Any] = {}
    if rest:
        source = rest[0]
        is_mapping = isinstance(source, dict) or tracer.has_attribute(source, "keys")
        items.update(tracer.mapping(source) if is_mapping else dict(tracer.spread(source)))
    items.update(kwargs)
    if isinstance(target, collections.OrderedDict):  # its update() goes through __setitem__
        for key, value in items.items():
            tracer.setitem(target, key, value)
        return
    for key, value in items.items():
        tracer.check_key(key, target)
        tracer.before_store(target, key)
        dict.__setitem__(target, key, value)


@special(set.update)
def set_update(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    items = [item for iterable in rest for item in tracer.spread(iterable)]
    objects.settle_keys(tracer, [*target, *items])
    tracer.before_append(target, items)
    set.update(target, items)


@special(str.join)
def join(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0].join(tracer.spread(args[1]))


@special(str.format)
def str_format(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return objects.format_text(tracer, args[0], args[1:], kwargs)
