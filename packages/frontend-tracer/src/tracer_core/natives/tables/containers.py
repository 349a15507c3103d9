"""Methods of lists, dicts, sets, tuples, strings and numbers."""

from __future__ import annotations

import collections
import types
from typing import Any

from tracer_core.interpreter.attributes import ABSENT
from tracer_core.natives.effects import MUTATES, PURE, declare, special

_READERS: dict[type, str] = {
    list: "copy count index __len__ __contains__ __iter__ __getitem__ __eq__ __ne__ __add__ __mul__ __reversed__"
          " __lt__ __le__ __gt__ __ge__ __rmul__",
    tuple: "count index __len__ __contains__ __iter__ __getitem__ __eq__ __ne__ __add__ __mul__ __hash__ __lt__",
    dict: "copy keys values items __len__ __iter__ __eq__ __ne__ __or__ __reversed__",
    set: "copy difference intersection isdisjoint issubset issuperset symmetric_difference union __len__"
         " __contains__ __iter__ __eq__ __sub__ __and__ __or__ __xor__",
    frozenset: "copy difference intersection isdisjoint issubset issuperset symmetric_difference union __len__"
               " __contains__ __iter__ __eq__ __sub__ __and__ __or__",
    collections.deque: "copy count index __len__ __iter__ __getitem__ __contains__",
    collections.OrderedDict: "copy keys values items __eq__ __iter__ __reversed__",
}  # fmt: skip
_WRITERS: dict[type, str] = {
    list: "append insert pop remove clear reverse __setitem__ __delitem__",
    dict: "pop popitem clear __setitem__ __delitem__",
    set: "add discard remove pop clear",
    collections.deque: "append appendleft pop popleft clear rotate reverse remove insert __setitem__",
    collections.OrderedDict: "move_to_end pop popitem clear __setitem__ __delitem__",
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
                             "__repr__", "__eq__", "__ne__")
        ],
    )  # fmt: skip
declare(PURE, [str.__dict__["maketrans"], dict.__dict__["fromkeys"], int.__eq__, str.__eq__, float.__eq__])


@special(list.extend, collections.deque.extend)
def extend(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, iterable = args
    items = tracer.spread(iterable)
    tracer.before_change(target)
    type_of = list if isinstance(target, list) else collections.deque
    return type_of.extend(target, items)


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
    tracer.before_change(target)
    tracer.check_key(key)
    type_of = collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict
    type_of.__setitem__(target, key, value)
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
    for key in items:
        tracer.check_key(key)
    tracer.before_change(target)
    dict.update(target, items)


@special(set.update)
def set_update(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    items = [item for iterable in rest for item in tracer.spread(iterable)]
    tracer.before_change(target)
    set.update(target, items)


@special(str.join)
def join(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0].join(tracer.spread(args[1]))


@special(str.format)
def str_format(tracer: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    for value in (*args[1:], *kwargs.values()):
        tracer.native_reads(value)
    return str.format(*args, **kwargs)
