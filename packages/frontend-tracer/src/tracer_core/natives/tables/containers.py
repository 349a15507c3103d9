"""Methods of lists, dicts, sets, tuples, strings and numbers."""

from __future__ import annotations

import collections
import types
from typing import Any

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives import reading
from tracer_core.natives.effects import MOVES, MUTATES, PURE, declare, special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import special_methods
from tracer_core.trace.dict_entries import ABSENT
from tracer_core.trace.host_objects import text_part

_READERS: dict[type, str] = {
    list: "copy __len__ __iter__ __getitem__ __add__ __mul__ __reversed__ __rmul__",
    tuple: "__len__ __iter__ __getitem__ __add__ __mul__ __rmul__ __getnewargs__",
    dict: "copy keys values items __len__ __iter__ __or__ __ror__ __reversed__",
    set: "copy __len__ __iter__",
    frozenset: "copy __len__ __iter__",
    collections.deque: (
        "copy __copy__ __len__ __iter__ __getitem__ __add__ __mul__ __rmul__ __reversed__"
    ),
    collections.OrderedDict: "copy keys values items __iter__ __reversed__ __or__ __ror__",
    collections.defaultdict: "copy __copy__ __or__ __ror__",
}
_WRITERS: dict[type, str] = {
    list: "insert pop clear reverse __setitem__ __delitem__ __imul__",
    dict: "popitem clear",
    set: "discard remove clear",
    collections.deque: (
        "appendleft pop popleft clear rotate reverse insert __setitem__ __delitem__ __imul__"
    ),
    collections.OrderedDict: "move_to_end popitem clear",
}
#: Types whose every method reads only immutable values.
_IMMUTABLE = (str, bytes, int, float, complex, bool, range, slice, type(None))
_SET_OPERATIONS = (
    "difference intersection isdisjoint issubset issuperset symmetric_difference union"
    " difference_update intersection_update symmetric_difference_update __contains__ __eq__ __ne__"
    " __lt__ __le__ __gt__ __ge__ __sub__ __and__ __or__ __xor__ __rsub__ __rand__ __ror__ __rxor__"
    " __isub__ __iand__ __ior__ __ixor__"
)
_BYTEARRAY_WRITERS = frozenset(
    [
        "append",
        "clear",
        "extend",
        "insert",
        "pop",
        "remove",
        "reverse",
        "__setitem__",
        "__delitem__",
        "__iadd__",
        "__imul__",
    ]
)
_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def _methods(cls: type, names: str) -> list[Any]:
    return [cls.__dict__[name] for name in names.split() if name in cls.__dict__]


for _cls, _names in _READERS.items():
    declare(MOVES, _methods(_cls, _names))
for _cls, _names in _WRITERS.items():
    declare(MUTATES, _methods(_cls, _names))
for _cls in (*_IMMUTABLE, bytearray):
    for _name, _raw in _cls.__dict__.items():
        if not isinstance(_raw, _DESCRIPTORS) or _name in ("__getattribute__", "__init__",
        "__reduce__", "__sizeof__",
                                                           "__reduce_ex__"):  # fmt: skip
            continue
        if _cls in (str, bytes, bytearray) and _name in (
            "join",
            "format",
            "format_map",
            "__mod__",
            "__rmod__",
        ):
            continue
        declare(MUTATES if _cls is bytearray and _name in _BYTEARRAY_WRITERS else PURE, [_raw])
declare(PURE, [str.maketrans, bytes.maketrans, bytearray.maketrans])
declare(
    PURE,
    [bytes.__mod__, bytearray.__mod__, *(c.__dict__["__rmod__"] for c in (str, bytes, bytearray))],
)


@special(dict.__dict__["fromkeys"], collections.OrderedDict.__dict__["fromkeys"])
def fromkeys(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``cls.fromkeys(keys, value)``: args starts with the class."""
    cls, iterable, *value = args
    result = tracer.calls.call_value(cls, [], {})
    for key in tracer.containers.spread(iterable):
        tracer.containers.setitem(result, key, value[0] if value else kwargs.get("value"))
    return result


@special(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    """The counting loop of collections.Counter."""
    mapping, iterable = args
    elements = tracer.containers.spread(iterable)
    tracer.attributes.getattr(mapping, "get")  # without one, even an empty count raises
    for element in elements:
        known = tracer.calls.call_value(tracer.attributes.getattr(mapping, "get"), [element, 0], {})
        tracer.containers.setitem(mapping, element, tracer.operators.binary("+", known, 1))


@special(collections.defaultdict.__missing__)
def missing(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, key = args
    factory = tracer.attributes.getattr(target, "default_factory")
    if factory is None:
        raise KeyError(key)
    value = tracer.calls.call_value(factory, [], {})
    tracer.containers.setitem(target, key, value)
    return value


def _set_operation(method: Any) -> Any:
    mutates = method.__name__.endswith("_update") or method.__name__ in (
        "__isub__",
        "__iand__",
        "__ior__",
        "__ixor__",
    )
    is_slot = method.__name__.startswith("__")

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target, *rest = args
        sets = (set, frozenset)
        if method.__name__ == "__contains__":
            tracer.reads.check_key(rest[0], target)
            tracer.native_calls.native_reads(target)
            return method(target, *rest)
        rest = [
            (
                other
                if is_slot or isinstance(other, sets)
                else [tracer.scalars.concrete(item) for item in tracer.containers.spread(other)]
            )
            for other in rest
        ]
        tracer.native_calls.native_reads(target, *rest)
        elements = [item for other in rest if isinstance(other, (*sets, list)) for item in other]
        special_methods.realize_keys(tracer, [*target, *elements])
        if mutates:
            tracer.side_effects.before_change(target)
        return method(target, *rest)

    return handler


for _cls in (set, frozenset):
    for _raw in _methods(_cls, _SET_OPERATIONS):
        special(_raw)(_set_operation(_raw))


@special(list.__iadd__, collections.deque.__iadd__, dict.__ior__, collections.OrderedDict.__ior__)
def inplace(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.operators.inplace(
        "+" if isinstance(args[0], (list, collections.deque)) else "|", *args
    )


@special(collections.deque.extendleft)
def extendleft(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    items = tracer.containers.spread(args[1])
    tracer.side_effects.before_change(args[0])
    collections.deque.extendleft(args[0], items)


@special(collections.deque.__eq__, collections.deque.__ne__)
def deque_equal(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.break_graph("unknown_native", "a deque's comparison is called by name")


@special(list.extend, collections.deque.extend)
def extend(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, iterable = args
    items = tracer.containers.spread(iterable)
    tracer.side_effects.before_append(target, items)
    type_of = list if isinstance(target, list) else collections.deque
    return type_of.extend(target, items)


def _must_hash(key: Any) -> None:
    """Raises Python's own error for an unhashable key, before any change is noted."""
    if type(key) in (list, dict, set, bytearray, tuple, slice, collections.deque):
        hash(key)


def _append(add: Any) -> Any:
    """Makes the handler of a method that adds one value and reads no item of the container."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target, value = args
        if isinstance(target, set):
            value = tracer.scalars.concrete(value)
            tracer.reads.check_key(value, args[0])
            _must_hash(value)
        tracer.side_effects.before_append(target, [value])
        return add(target, value)

    return handler


for _add in (list.append, collections.deque.append, set.add):
    special(_add)(_append(_add))


@special(dict.__setitem__, collections.OrderedDict.__setitem__)
def store(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, key, value = args
    key = tracer.scalars.concrete(key)
    tracer.reads.check_key(key, target)
    _must_hash(key)
    tracer.side_effects.before_store(target, key)
    _kind(target).__setitem__(target, key, value)


@special(dict.__delitem__, collections.OrderedDict.__delitem__)
def delete(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    target, key = args
    if not tracer.reads.has_key(target, key):
        raise KeyError(key)
    tracer.side_effects.before_remove(target, key)
    _kind(target).__delitem__(target, key)


@special(dict.pop, collections.OrderedDict.pop)
def pop(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, key, *rest = args
    if tracer.entries.python_method(key, "__hash__") or not is_constant(key):
        if type(target) is dict and not tracer.reads.keys(
            target
        ):  # an empty one does not hash the key
            key = ""
    tracer.reads.check_key(key, target)
    value = tracer.reads.dict_get(target, key, ABSENT)
    if value is ABSENT:
        if rest or "default" in kwargs:
            return rest[0] if rest else kwargs["default"]
        raise KeyError(args[1])
    tracer.side_effects.before_remove(target, key)
    return _kind(target).pop(target, key)


def _kind(target: Any) -> Any:
    """Returns the base class whose methods run no user code."""
    return collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict


@special(list.sort)
def sort(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.side_effects.before_change(args[0])
    ordered = tracer.calls.call_value(sorted, [list(args[0])], kwargs)
    args[0][:] = ordered


@special(dict.get)
def get(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.reads.dict_get(args[0], args[1], args[2] if len(args) > 2 else None, varies=True)


@special(dict.__getitem__)
def getitem(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    value = tracer.reads.dict_get(args[0], args[1], ABSENT, varies=True)
    if value is ABSENT:
        raise KeyError(args[1])
    return value


@special(dict.__contains__)
def contains(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return tracer.reads.dict_get(args[0], args[1], ABSENT) is not ABSENT


@special(dict.setdefault, collections.OrderedDict.setdefault)
def setdefault(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, key = args[0], args[1]
    value = tracer.reads.dict_get(target, key, ABSENT, varies=True)
    if value is not ABSENT:
        return value
    value = args[2] if len(args) > 2 else None
    tracer.reads.check_key(key, target)
    tracer.side_effects.before_store(target, key)
    _kind(target).__setitem__(target, key, value)
    return value


@special(dict.update, collections.OrderedDict.update)
def update(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    items: dict[Any, Any] = {}
    if rest:
        items = pairs_of(tracer, rest[0], _kind(target))
    items.update(kwargs)
    if isinstance(target, collections.OrderedDict):  # its update() calls __setitem__
        for key, value in items.items():
            tracer.containers.setitem(target, key, value)
        return
    for key, value in items.items():
        tracer.reads.check_key(key, target)
        tracer.side_effects.before_store(target, key)
        dict.__setitem__(target, key, value)


def pairs_of(tracer: Tracing, source: Any, kind: type = dict) -> dict[Any, Any]:
    """Returns the items that kind(source) reads from a mapping or from pairs."""
    if isinstance(source, dict) or tracer.attributes.has_attribute(source, "keys"):
        found = tracer.containers.mapping(source)
        special_methods.realize_keys(tracer, list(found))
        return dict(found)
    items: dict[Any, Any] = {}
    for i, pair in enumerate(tracer.containers.spread(source)):
        parts = tracer.containers.spread(pair)
        if len(parts) != 2 and kind is not dict:
            tracer.break_graph("native_python", f"{kind.__name__}() refuses its arguments")
        if len(parts) != 2:
            length = (
                f"dictionary update sequence element #{i} has length {len(parts)}; 2 is required"
            )
            raise ValueError(length)
        key = tracer.scalars.concrete(parts[0])
        tracer.reads.check_key(key, items)
        items[key] = parts[1]
    return items


@special(set.pop)
def set_pop(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    (target,) = args
    if len(target) > 1 and not tracer.provenance.is_fresh(
        target
    ):  # its choice of member depends on earlier pops
        tracer.break_graph("unsupported_mutation", "set.pop() of a set from before this segment")
    tracer.native_calls.native_reads(target)
    tracer.side_effects.before_change(target)
    return set.pop(target)


@special(set.update)
def set_update(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    target, *rest = args
    items = [
        tracer.scalars.concrete(item)
        for iterable in rest
        for item in tracer.containers.spread(iterable)
    ]
    special_methods.realize_keys(tracer, [*target, *items])
    tracer.side_effects.before_append(target, items)
    set.update(target, items)


@special(str.join, bytes.join, bytearray.join)
def join(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    glue, *items = [
        tracer.scalars.payload(item) for item in (args[0], *tracer.containers.spread(args[1]))
    ]
    reading.read_values(tracer, glue, items)
    return glue.join(items)


@special(str.format)
def str_format(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return special_methods.format_text(tracer, args[0], args[1:], kwargs)


@special(str.format_map)
def format_map(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return args[0].format_map(text_part(tracer, args[1]))
