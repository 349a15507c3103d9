"""Methods of lists, dicts, sets, tuples, strings and numbers, and weak references."""

from __future__ import annotations

import array
import collections
import itertools
import types
import weakref
from collections.abc import Iterator
from typing import Any

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives import reading
from tracer_core.natives.effects import (
    EFFECTS,
    MOVES,
    MUTATES,
    PURE,
    Effect,
    breaks,
    declare,
    special,
    special_each,
)
from tracer_core.trace import special_methods
from tracer_core.trace.dict_entries import ABSENT
from tracer_core.trace.host_objects import SortKey, text_part
from tracer_core.trace.tracer import Tracer

_METHODS: dict[Effect, dict[type, str]] = {
    MOVES: {
        list: "__len__ __iter__ __getitem__ __add__ __mul__ __reversed__ __rmul__",
        tuple: "__len__ __iter__ __getitem__ __add__ __mul__ __rmul__ __getnewargs__",
        dict: "__len__ __iter__ __or__ __ror__ __reversed__",
        set: "copy __len__ __iter__",
        frozenset: "copy __len__ __iter__",
        collections.deque: (
            "copy __copy__ __len__ __iter__ __getitem__ __add__ __mul__ __rmul__ __reversed__"
        ),
        collections.OrderedDict: "copy keys values items __iter__ __reversed__ __or__ __ror__",
        collections.defaultdict: "copy __copy__ __or__ __ror__",
    },
    MUTATES: {
        list: "insert pop clear reverse __setitem__ __delitem__ __imul__",
        dict: "popitem clear",
        set: "discard remove clear",
        collections.deque: (
            "appendleft pop popleft clear rotate reverse insert __setitem__ __delitem__ __imul__"
        ),
        collections.OrderedDict: "move_to_end popitem clear",
        bytearray: (
            "append clear extend insert pop remove reverse __setitem__ __delitem__ __iadd__"
            " __imul__"
        ),
        array.array: (
            "append extend insert pop remove reverse byteswap fromlist frombytes __setitem__"
            " __delitem__ __iadd__ __imul__"
        ),
    },
    PURE: {  # guarded by the whole contents, like a bytearray
        array.array: (
            "tobytes tolist index count __len__ __getitem__ __iter__ __contains__ __eq__ __ne__"
            " __add__ __mul__"
        ),
    },
}
_SET_UPDATES = (
    "difference_update intersection_update symmetric_difference_update __isub__ __iand__"
    " __ior__ __ixor__"
)
_SET_OPERATIONS = (
    "difference intersection isdisjoint issubset issuperset symmetric_difference union __eq__"
    " __ne__ __lt__ __le__ __gt__ __ge__ __sub__ __and__ __or__ __xor__ __rsub__ __rand__"
    " __ror__ __rxor__"
)
_SETS = (set, frozenset)


def _methods(cls: type, names: str) -> list[Any]:
    return [cls.__dict__[name] for name in names.split() if name in cls.__dict__]


for _effect, _names_of in _METHODS.items():
    for _cls, _names in _names_of.items():
        declare(_effect, _methods(_cls, _names))
declare(PURE, [array.array, str.maketrans, bytes.maketrans, bytearray.maketrans])


# -- lists and deques --


@special(list.__init__)
def list_init(tracer: Tracer, target: Any, iterable: Any = (), /) -> None:
    items = tracer.containers.spread(iterable)
    tracer.side_effects.before_change(target)
    list.__init__(target, items)


@special(collections.deque.__init__)
def deque_init(
    tracer: Tracer, target: Any, iterable: Any = ABSENT, *args: Any, **kwargs: Any
) -> None:
    if not tracer.provenance.is_fresh(target):
        tracer.break_graph("unsupported_mutation", "a deque is initialised again")
    items = [] if iterable is ABSENT else tracer.containers.spread(iterable)
    collections.deque.__init__(target, items, *args, **kwargs)


@special(list.copy)
def list_copy(tracer: Tracer, target: Any) -> list[Any]:
    return list(tracer.reads.items(target, varies=True))


@special(list.append, collections.deque.append)
def append(tracer: Tracer, target: Any, value: Any) -> None:
    """Reads no item of the container."""
    tracer.side_effects.before_append(target, [value])
    (list if isinstance(target, list) else collections.deque).append(target, value)


@special(list.extend, collections.deque.extend)
def extend(tracer: Tracer, target: Any, iterable: Any) -> None:
    tracer.containers.extend(target, iterable)


@special(collections.deque.extendleft)
def extendleft(tracer: Tracer, target: Any, iterable: Any) -> None:
    tracer.side_effects.before_change(target)
    for item in list(target) if iterable is target else tracer.containers.stream(iterable):
        collections.deque.appendleft(target, item)


@special(list.__iadd__, collections.deque.__iadd__, dict.__ior__, collections.OrderedDict.__ior__)
def inplace(tracer: Tracer, target: Any, other: Any) -> Any:
    symbol = "+" if isinstance(target, (list, collections.deque)) else "|"
    return tracer.operators.inplace(symbol, target, other)


@special(list.sort)
def sort(tracer: Tracer, target: Any, **kwargs: Any) -> None:
    tracer.side_effects.before_change(target)
    items = list(target)
    target.clear()  # as code that is called meanwhile finds it
    try:
        sort_items(tracer, items, **kwargs)
    finally:
        modified = bool(target)
        target[:] = items
    if modified:
        raise ValueError("list modified during sort")


def sort_items(tracer: Tracer, items: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    """Sorts a list that only the tracer sees, with the program's key and comparisons. An exception
    leaves the order that C code had reached."""
    if is_constant(reverse) or type(reverse) in (list, tuple, dict, set):
        sorted((), reverse=reverse)  # raises Python's own error
    keys = list(items)
    if key is not None:
        keys = [tracer.calls.call_value(key, [item], {}) for item in items]
    if not all(map(is_constant, keys)):
        keys = [SortKey(tracer, key) for key in keys]
    order, result = list(range(len(items))), list(items)
    try:
        order.sort(key=keys.__getitem__, reverse=tracer.operators.truth(reverse))
    finally:
        items[:] = [result[i] for i in order]


# -- dictionaries --


def _kind(target: Any) -> Any:
    """Returns the base class whose methods run no user code."""
    return collections.OrderedDict if isinstance(target, collections.OrderedDict) else dict


@special(dict.__dict__["fromkeys"], collections.OrderedDict.__dict__["fromkeys"])
def fromkeys(tracer: Tracer, cls: Any, iterable: Any, value: Any = None, /) -> Any:
    """``cls.fromkeys(keys, value)``: the row gets the class first."""
    result = tracer.calls.call_value(cls, [], {})
    for key in tracer.containers.stream(iterable):
        tracer.containers.setitem(result, key, value)
    return result


@special(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(tracer: Tracer, mapping: Any, iterable: Any) -> None:
    """The counting loop of collections.Counter."""
    elements = tracer.containers.stream(iterable)
    tracer.attributes.getattr(mapping, "get")  # without one, even an empty count raises
    for element in elements:
        count = tracer.calls.call_value(tracer.attributes.getattr(mapping, "get"), [element, 0], {})
        tracer.containers.setitem(mapping, element, tracer.operators.binary("+", count, 1))


@special(collections.defaultdict.__missing__)
def missing(tracer: Tracer, target: Any, key: Any) -> Any:
    factory = tracer.attributes.getattr(target, "default_factory")
    if factory is None:
        raise KeyError(key)
    return tracer.containers.store_missing(target, key, factory)


@special_each(dict.keys, dict.values, dict.items)
def view_of(tracer: Tracer, method: Any, target: Any) -> Any:
    """Returns a view, whose values are guarded where they are read."""
    tracer.reads.check_size(target)
    tracer.reads.keys(target)
    return method(target)


@special(dict.copy)
def copy_of(tracer: Tracer, target: Any) -> dict[Any, Any]:
    return dict(tracer.reads.entries(target, varies=True))


@special(dict.get)
def get(tracer: Tracer, target: Any, key: Any, default: Any = None, /) -> Any:
    return tracer.reads.dict_get(target, key, default, varies=True)


@special(dict.__getitem__)
def getitem(tracer: Tracer, target: Any, key: Any) -> Any:
    value = tracer.reads.dict_get(target, key, ABSENT, varies=True)
    if value is ABSENT:
        raise KeyError(key)
    return value


@special(dict.__contains__)
def contains(tracer: Tracer, target: Any, key: Any) -> bool:
    return tracer.reads.dict_get(target, key, ABSENT) is not ABSENT


@special(dict.__setitem__, collections.OrderedDict.__setitem__)
def store(tracer: Tracer, target: Any, key: Any, value: Any) -> None:
    key = tracer.scalars.concrete(key)
    tracer.reads.check_key(key, target)
    special_methods.check_hashable(key, dict)
    tracer.side_effects.before_store(target, key)
    _kind(target).__setitem__(target, key, value)


@special(dict.setdefault, collections.OrderedDict.setdefault)
def setdefault(tracer: Tracer, target: Any, key: Any, default: Any = None) -> Any:
    value = tracer.reads.dict_get(target, key, ABSENT, varies=True)
    if value is not ABSENT:
        return value
    tracer.reads.check_key(key, target)
    tracer.side_effects.before_store(target, key)
    _kind(target).__setitem__(target, key, default)
    return default


@special(dict.__delitem__, collections.OrderedDict.__delitem__)
def delete(tracer: Tracer, target: Any, key: Any) -> None:
    if not tracer.reads.has_key(target, key):
        raise KeyError(key)
    tracer.side_effects.before_remove(target, key)
    _kind(target).__delitem__(target, key)


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


@special(dict.pop, collections.OrderedDict.pop)
def pop(tracer: Tracer, target: Any, key: Any, default: Any = ABSENT) -> Any:
    asked = key
    hashable = is_constant(key) and _is_hashable(key)
    if not hashable and type(target) is dict and not tracer.reads.keys(target):
        asked = ""  # an empty dictionary does not hash the key
    tracer.reads.check_key(asked, target)
    value = tracer.reads.dict_get(target, asked, ABSENT, varies=True)
    if value is not ABSENT:
        tracer.side_effects.before_remove(target, asked)
        _kind(target).pop(target, asked)
        return value
    if default is ABSENT:
        raise KeyError(key)
    return default


@special(
    dict.update, collections.OrderedDict.update, dict.__init__, collections.OrderedDict.__init__
)
def update(tracer: Tracer, target: Any, items: Any = (), /, **kwargs: Any) -> None:
    pairs = pairs_of(tracer, items, _kind(target))
    for key, value in itertools.chain(pairs, kwargs.items()):
        if isinstance(target, collections.OrderedDict):  # its update() calls __setitem__
            tracer.containers.setitem(target, key, value)
            continue
        tracer.reads.check_key(key, target)
        special_methods.check_hashable(key, dict)
        tracer.side_effects.before_store(target, key)
        dict.__setitem__(target, key, value)


@special(collections.defaultdict.__init__)
def defaultdict_init(tracer: Tracer, target: Any, /, *args: Any, **kwargs: Any) -> None:
    if not tracer.provenance.is_fresh(target):
        tracer.break_graph("unsupported_mutation", "a defaultdict is initialised again")
    collections.defaultdict.__init__(target, *args[:1])
    update(tracer, target, *args[1:], **kwargs)


def pairs_of(tracer: Tracer, source: Any, kind: type = dict) -> Iterator[tuple[Any, Any]]:
    """Yields the items that kind(source) reads from a mapping or from pairs, one by one."""
    if isinstance(source, dict) or tracer.attributes.has_attribute(source, "keys"):
        yield from tracer.containers.entries_of(source)
        return
    for i, pair in enumerate(tracer.containers.stream(source)):
        try:
            entry = tracer.containers.spread(pair)
        except TypeError:  # also one of the program's own: C code gives it other words, or a note
            tracer.break_graph("native_python", f"{kind.__name__}() refuses its arguments")
        if len(entry) != 2 and kind is not dict:
            tracer.break_graph("native_python", f"{kind.__name__}() refuses its arguments")
        if len(entry) != 2:
            raise ValueError(
                f"dictionary update sequence element #{i} has length {len(entry)}; 2 is required"
            )
        yield tracer.scalars.concrete(entry[0]), entry[1]


# -- sets --


@special(set.__init__)
def set_init(tracer: Tracer, target: Any, iterable: Any = (), /) -> None:
    items = tracer.calls.call_value(
        set, [iterable], {}
    )  # compares the members as the program would
    tracer.side_effects.before_change(target)
    set.__init__(target, items)


@special_each(*(m for cls in _SETS for m in _methods(cls, f"{_SET_OPERATIONS} {_SET_UPDATES}")))
def set_operation(tracer: Tracer, method: Any, target: Any, *others: Any) -> Any:
    is_slot = method.__name__.startswith("__")
    rest = [
        other
        if is_slot or isinstance(other, _SETS)
        else _members(tracer, other)
        if type(other) is dict or tracer.containers.is_snapshot(other)
        else _elements(tracer, target, other)
        for other in others
    ]
    tracer.native_calls.native_reads(
        target, *(other for other in rest if not isinstance(other, types.GeneratorType))
    )
    elements = [item for other in rest if isinstance(other, (*_SETS, list, dict)) for item in other]
    special_methods.realize_keys(tracer, [*target, *elements])
    if method.__name__ in _SET_UPDATES.split():
        tracer.side_effects.before_change(target)
    return method(target, *rest)


def _members(tracer: Tracer, iterable: Any) -> Any:
    """Returns the members of an iterable that gives them all at once."""
    items = [tracer.scalars.concrete(item) for item in tracer.containers.spread(iterable)]
    return special_methods.as_given(iterable, items)


def _elements(tracer: Tracer, target: Any, iterable: Any) -> Iterator[Any]:
    """Yields the items of an iterator as C code asks for them; some methods stop early."""
    for item in tracer.containers.stream(iterable):
        element = tracer.scalars.concrete(item)
        tracer.reads.check_key(element, target)
        yield element


@special_each(set.__contains__, frozenset.__contains__)
def set_contains(tracer: Tracer, method: Any, target: Any, member: Any) -> bool:
    tracer.reads.check_key(member, target)
    tracer.native_calls.native_reads(target)
    return bool(method(target, member))


@special(set.add)
def add(tracer: Tracer, target: Any, value: Any) -> None:
    value = tracer.scalars.concrete(value)
    tracer.reads.check_key(value, target)
    special_methods.check_hashable(value, set)
    tracer.side_effects.before_append(target, [value])
    set.add(target, value)


@special(set.pop)
def set_pop(tracer: Tracer, target: Any) -> Any:
    if len(target) > 1 and not tracer.provenance.is_fresh(
        target
    ):  # its choice of member depends on earlier pops
        tracer.break_graph("unsupported_mutation", "set.pop() of a set from before this segment")
    tracer.native_calls.native_reads(target)
    tracer.side_effects.before_change(target)
    tracer.reads.note_order(target)
    return set.pop(target)


@special(set.update)
def set_update(tracer: Tracer, target: Any, *iterables: Any) -> None:
    for iterable in iterables:
        full = tracer.containers.is_snapshot(iterable) or isinstance(iterable, (*_SETS, dict))
        groups = [_members(tracer, iterable)] if full else (
            [tracer.scalars.concrete(item)] for item in tracer.containers.stream(iterable))  # fmt: skip
        for items in groups:
            special_methods.realize_keys(tracer, [*target, *items])
            tracer.side_effects.before_append(target, list(items))
            set.update(target, items)


# -- text, and other types whose methods read only immutable values --


@special(str.join, bytes.join, bytearray.join)
def join(tracer: Tracer, glue: Any, iterable: Any) -> Any:
    items = [tracer.scalars.payload(item) for item in tracer.containers.spread(iterable)]
    glue = tracer.scalars.payload(glue)
    reading.read_values(tracer, glue, items)
    return glue.join(items)


@special(str.format)
def str_format(tracer: Tracer, template: Any, /, *args: Any, **kwargs: Any) -> str:
    return special_methods.format_text(tracer, template, [*args], kwargs)


@special(str.format_map)
def format_map(tracer: Tracer, template: Any, mapping: Any) -> str:
    return str(template.format_map(text_part(tracer, mapping)))


@special(str.__mod__)
def percent(tracer: Tracer, template: Any, values: Any) -> str:
    return special_methods.percent(tracer, template, values)


_UNREAD = ("__getattribute__", "__init__", "__reduce__", "__sizeof__", "__reduce_ex__")
_METHOD_TYPES = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
for _cls in (str, bytes, int, float, complex, bool, range, slice, type(None), bytearray):
    for _name, _raw in _cls.__dict__.items():
        if isinstance(_raw, _METHOD_TYPES) and _name not in _UNREAD and _raw not in EFFECTS:
            declare(PURE, [_raw])


# -- weak references --


@special(weakref.ref)
def weak_reference(tracer: Tracer, *args: Any) -> Any:
    """References only objects that outlive the call: a trace does not know when others die."""
    if (
        args
        and tracer.provenance.is_fresh(args[0])
        and not isinstance(args[0], type)
        and not _to_itself(tracer)
    ):
        tracer.break_graph("finalizer", "a weak reference to a new object is made")
    return weakref.ref(*args)


def _to_itself(tracer: Tracer) -> bool:
    """Returns whether a weak dictionary or set under construction refers to itself."""
    frame = tracer.frames[-1]
    return (
        frame.globals.get("__name__") in ("weakref", "_weakrefset")
        and frame.code.raw.co_name == "__init__"
    )


_CHANGING = (
    "__setitem__ __delitem__ pop popitem setdefault update clear add discard remove __ior__"
    " __iand__ __isub__ __ixor__ difference_update intersection_update"
    " symmetric_difference_update"
)


@special_each(
    *(
        method
        for cls in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)
        for method in _methods(cls, _CHANGING)
        if isinstance(method, types.FunctionType)
    )
)
def change_weak(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A method that mutates a weak dictionary or set. One from before the trace may lose members at
    any time, so its old contents cannot be restored."""
    if not tracer.provenance.is_fresh(args[0]):
        tracer.break_graph("finalizer", f"{function.__qualname__} of one that existed before")
    return tracer.calls.run_nested(tracer.calls.frame_of(function, [*args], kwargs))


breaks("finalizer", "it is called when an object dies", [weakref.finalize])
