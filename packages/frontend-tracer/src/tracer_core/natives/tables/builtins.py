"""Python's built-in functions and types."""

from __future__ import annotations

import abc
import builtins
import collections
import functools
import types
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.natives.effects import PURE, SHALLOW, breaks, declare, special
from tracer_core.natives.queries import query
from tracer_core.natives.tables.containers import pairs_of
from tracer_core.natives.tables.frames import break_for_variables
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import instances, special_methods
from tracer_core.trace.class_creation import new_class
from tracer_core.trace.dict_entries import has_python
from tracer_core.trace.generators import HOST_ITERATORS, TracedGenerator

declare(PURE, [ord])
declare(SHALLOW, [callable, object.__new__, slice])
breaks(
    "side_effect_native", "it prints or reads", [print, input, builtins.open, builtins.breakpoint]
)


@special(isinstance)
def is_instance(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    obj, classes = args
    if isinstance(obj, torch.Tensor) and torch_private.is_fake(obj):
        # An intermediate is a plain torch.Tensor to the program.
        return _is_plain_tensor_instance(classes)
    if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        concrete = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}[type(obj)]
        return isinstance(obj, classes) or isinstance(concrete, classes)
    tracer.native_calls.native_reads(classes)
    hooked = _asked_hook(tracer, classes, "__instancecheck__", obj)
    if hooked is not None:
        return hooked
    if isinstance(obj, HOST_ITERATORS):
        return isinstance(_stand_in(obj), classes)
    tracer.entries.guard_lineage(type(obj))
    if _says_its_class(tracer, type(obj)):
        return _is_instance_by_word(tracer, obj, classes)
    for cls in _flat(classes):
        if type(cls) is not type:
            tracer.entries.special(type(cls), "__instancecheck__")
            _ask_registry(tracer, type(obj), cls)
    return isinstance(obj, classes)


def _says_its_class(tracer: Tracing, kind: type) -> bool:
    """Returns whether ``obj.__class__``, which isinstance reads, is user code."""
    if not kind.__flags__ & HEAP_TYPE:
        return False
    return tracer.entries.special(kind, "__class__") is not object.__dict__[
        "__class__"
    ] or has_python(tracer.entries.special(kind, "__getattribute__"))


def _is_instance_by_word(tracer: Tracing, obj: Any, classes: Any) -> bool:
    """isinstance() of an object with its own ``__class__``: read for each class that it is no
    instance of."""
    for cls in _flat(classes):
        if cls in type(obj).__mro__:
            return True
        if type(cls) is not type:
            tracer.break_graph(
                "unknown_native",
                f"{type(cls).__name__} asks a {type(obj).__name__} for its __class__",
            )
        said = tracer.attributes.getattr_or(obj, "__class__", None)
        if isinstance(said, type) and cls in said.__mro__:
            return True
    return False


@special(issubclass)
def is_subclass(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    cls, classes = args
    tracer.native_calls.native_reads(classes)
    hooked = _asked_hook(tracer, classes, "__subclasscheck__", cls)
    if hooked is not None:
        return hooked
    if isinstance(cls, type):
        tracer.entries.guard_lineage(cls)
    for other in _flat(classes):
        if type(other) is not type:
            tracer.entries.special(type(other), "__subclasscheck__")
            _ask_registry(tracer, cls, other)
    return issubclass(cls, classes)


def _ask_registry(tracer: Tracing, kind: type, cls: Any) -> None:
    """Guards the answer of abstract classes, whose registry may change at any time."""
    if (
        isinstance(cls, abc.ABCMeta)
        and cls not in kind.__mro__
        and not tracer.entries.made_class(kind)
    ):
        handle = (issubclass, kind, cls)
        if handle not in tracer.native_calls.questions and not tracer.entries.made_class(cls):
            tracer.native_calls.questions[handle] = functools.partial(issubclass, kind, cls)
            query(tracer, tracer.native_calls.questions[handle])


def _flat(classes: Any) -> list[Any]:
    """Returns the classes in the second argument of isinstance."""
    if isinstance(classes, (tuple, types.UnionType)):
        parts = classes if isinstance(classes, tuple) else classes.__args__
        return [cls for part in parts for cls in _flat(part)]
    return [classes]


def _asked_hook(tracer: Tracing, classes: Any, name: str, obj: Any) -> bool | None:
    """Returns the answer of user-defined metaclasses; None if none of these classes has a hook of
    its own."""
    flat = _flat(classes)
    hooks = [_hook(tracer, cls, name) for cls in flat]
    if not any(hooks):
        return None
    plain = isinstance if name == "__instancecheck__" else issubclass
    for cls, hook in zip(flat, hooks, strict=True):
        if plain is isinstance and type(obj) is cls:
            return True
        if (
            tracer.operators.truth(tracer.calls.call_value(hook, [cls, obj], {}))
            if hook
            else plain(obj, cls)
        ):
            return True
    return False


def _hook(tracer: Tracing, cls: Any, name: str) -> Any:
    found = tracer.entries.python_method(cls, name) if isinstance(cls, type) else None
    return (
        None if found is None or found.__module__.partition(".")[0] in _KNOWN_METACLASSES else found
    )


#: Packages whose metaclass checks read only types and registries.
_KNOWN_METACLASSES = frozenset({"abc", "typing", "torch", "enum", "typing_extensions"})


def _stand_in(iterator: Any) -> Any:
    """Returns an object of the type that an iterator has for the program."""
    return (None for _ in range(0)) if isinstance(iterator, TracedGenerator) else map(iter, ())


def _is_plain_tensor_instance(classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(_is_plain_tensor_instance(cls) for cls in classes)
    if isinstance(classes, types.UnionType):
        return any(_is_plain_tensor_instance(cls) for cls in classes.__args__)
    return isinstance(_PLAIN, classes)


_PLAIN = torch.empty(0)


#: Symbolic type -> the type that the program sees.
_SYMBOL_TYPES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_SYMBOL_OF: dict[type, type] = {int: torch.SymInt, float: torch.SymFloat}


@special(type)
def type_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        return new_class(tracer, [type, *args], kwargs)
    if torch_private.is_fake(args[0]):
        return torch.Tensor
    if isinstance(args[0], HOST_ITERATORS):
        return type(_stand_in(args[0]))
    return _SYMBOL_TYPES.get(type(args[0]), type(args[0]))


@special(len)
def length(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    (obj,) = args
    method = tracer.entries.python_method(obj, "__len__")
    if method is not None:
        return special_methods.ask(tracer, method, obj, "__len__")
    if tracer.entries.lacks(obj, "__len__"):
        return len(obj)  # raises Python's own error
    if isinstance(obj, torch.Tensor):
        if obj.dim() == 0:
            raise TypeError("len() of a 0-d tensor")
        return tracer.attributes.getattr(obj, "shape")[0]
    if isinstance(obj, (list, tuple)):
        return tracer.reads.length(obj)
    if isinstance(obj, dict):
        return len(tracer.reads.keys(obj))
    tracer.native_calls.native_reads(obj)
    return len(obj)


@special(builtins.__import__)
def import_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not isinstance(args[0], str):
        tracer.break_graph("native_python", "__import__() of what is no name")
    name, fromlist, level = (
        args[0],
        args[3] if len(args) > 3 else (),
        args[4] if len(args) > 4 else 0,
    )
    return tracer.names.import_name(
        tracer.frames[-1], name, kwargs.get("fromlist", fromlist), kwargs.get("level", level)
    )


@special(vars)
def vars_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) > 1 or kwargs:
        return vars(*args, **kwargs)  # raises Python's own error
    if not args:
        break_for_variables(tracer, vars)
    try:
        return tracer.attributes.getattr(args[0], "__dict__")
    except AttributeError:
        raise TypeError("vars() argument must have __dict__ attribute") from None


@special(object.__init__)
def object_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    if len(args) != 1 or kwargs:
        object.__init__(*args, **kwargs)  # can only raise Python's own error


@special(object.__dict__["__init_subclass__"])
def object_init_subclass(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    if len(args) > 1:
        tracer.break_graph("native_python", "__init_subclass__() refuses its arguments")
    object.__init_subclass__(**kwargs)  # raises Python's own error


@special(object.__eq__)
def object_equal(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return True if args[0] is args[1] else NotImplemented


@special(object.__ne__)
def object_unequal(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The negation of ``__eq__``."""
    equal = tracer.entries.special(type(args[0]), "__eq__")
    if equal is not object.__eq__ and not isinstance(equal, types.FunctionType):
        tracer.break_graph("unknown_native", f"object.__ne__ of a {type(args[0]).__name__}")
    said = tracer.calls.call_value(equal, args, {})
    return said if said is NotImplemented else not tracer.operators.truth(said)


@special(hash, object.__hash__)
def hash_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    return special_methods.hash_of(tracer, args[0])


def _collect(kind: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        items = tracer.containers.spread(args[0]) if args else []
        if kind in (set, frozenset):
            items = [tracer.scalars.concrete(item) for item in items]
            special_methods.realize_keys(tracer, items)
        return kind(items)

    return handler


for _kind in (list, tuple, set, frozenset):
    special(_kind)(_collect(_kind))


@special(collections.deque)
def deque_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    items = tracer.containers.spread(args[0]) if args else []
    return collections.deque(items, *args[1:], **kwargs)


def _mapping_init(kind: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = kind()
        if args:
            result.update(pairs_of(tracer, args[0], kind))
        result.update(kwargs)
        return result

    return handler


special(dict)(_mapping_init(dict))
special(collections.OrderedDict)(_mapping_init(collections.OrderedDict))


@special(collections.defaultdict)
def defaultdict_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return collections.defaultdict(
        args[0] if args else None,
        *(tracer.calls.call_value(dict, [a], {}) for a in args[1:]),
        **kwargs,
    )


def _number(kind: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not args:
            return kind(**kwargs)
        value = args[0]
        if isinstance(value, torch.Tensor):
            if (
                kind is int
                and not kwargs
                and tracer.recorder.refused(torch.Tensor.item, (value,), {}) is None
            ):
                return tracer.native_calls.call_torch(torch.Tensor.item, [value], {})
            tracer.break_graph("data_dependent_value", f"{kind.__name__}() of a tensor")
        if type(value) is _SYMBOL_OF.get(kind):
            return value
        if type(value) in _SYMBOL_TYPES and len(args) == 1 and not kwargs:
            return (
                tracer.scalars.operate(kind, (value,))
                if kind in _SYMBOL_OF
                else kind(tracer.scalars.concrete(value))
            )
        for name in _NUMBER_METHODS[kind]:
            method = tracer.entries.python_method(value, name)
            if method is not None:
                return kind(special_methods.ask(tracer, method, value, name))
        if tracer.scalars.payload(value) is not value:
            return kind(tracer.scalars.payload(value), *args[1:], **kwargs)
        if (
            len(args) == 1
            and tracer.entries.lacks(value, *_NUMBER_METHODS[kind])
            and not isinstance(value, _READABLE)
        ):
            return kind(*args, **kwargs)  # raises Python's own error
        tracer.native_calls.native_reads(*args)
        return kind(*args, **kwargs)

    return handler


_READABLE = (str, bytes, int, float, complex)
_NUMBER_METHODS: dict[type, tuple[str, ...]] = {
    int: ("__int__", "__index__", "__trunc__"),
    float: ("__float__", "__index__"),
    complex: ("__complex__", "__float__", "__index__"),
    bytes: ("__bytes__", "__index__", "__iter__"),
    bytearray: ("__index__", "__iter__"),
}
for _number_type in (int, float, complex, bytes, bytearray):
    special(_number_type)(_number(_number_type))


@special(bool)
def bool_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return bool(tracer.operators.truth(args[0])) if args else False


def _text(kind: Any, answer: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not args:
            return ""
        args = [tracer.scalars.concrete(args[0]), *args[1:]]
        if len(args) == 1 and not kwargs:
            return answer(tracer, args[0])
        tracer.native_calls.native_reads(*args)
        return kind(*args, **kwargs)

    return handler


special(str)(_text(str, special_methods.str_of))
special(repr)(_text(repr, special_methods.repr_of))


@special(format)
def format_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> str:
    return str(tracer.containers.format(args[0], args[1] if len(args) > 1 else ""))


@special(super)
def super_of(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if not args:
        return instances.zero_argument_super(tracer)
    return super(*args)


declare(
    SHALLOW,
    [property, staticmethod, classmethod, property.setter, property.getter, property.deleter],
)
