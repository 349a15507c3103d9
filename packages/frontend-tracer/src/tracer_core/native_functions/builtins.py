"""Python's built-in functions and types."""

from __future__ import annotations

import abc
import builtins
import collections
import gc
import sys
import types
import typing
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.code import queries_locals
from tracer_core.fx_capture.unbacked import is_float, is_integer
from tracer_core.graph_breaks import RunEagerly
from tracer_core.guards.value_kinds import instances_have, is_constant
from tracer_core.native_effects.effects import (
    PURE,
    SHALLOW,
    breaks,
    declare,
    special,
    special_each,
    special_rows,
)
from tracer_core.native_functions.dict_methods import pairs_of
from tracer_core.torch_private.names import classes
from tracer_core.trace import guarded_calls, instance_creation, special_methods, state_values
from tracer_core.trace.attribute_lookup import ABSENT, has_python, is_native, is_subtype
from tracer_core.trace.class_creation import new_class
from tracer_core.trace.eager_interpreter import FRAME_QUERIES
from tracer_core.trace.generators import HOST_ITERATORS, TracedGenerator
from tracer_core.trace.guarded_calls import query_call
from tracer_core.trace.host_objects import CONVERSIONS, ITEMS, call_with_polyfills, host_object
from tracer_core.trace.traced_arrays import TracedArray, is_array
from tracer_core.trace.traced_arrays import length as array_length
from tracer_core.trace.tracer import Tracer

declare(PURE, [ord])
declare(SHALLOW, [callable, object.__new__, slice, property, staticmethod, classmethod])
declare(SHALLOW, [property.setter, property.getter, property.deleter])
breaks("side_effect_native", "it prints or reads", [input, builtins.open])
breaks("native_python", "code is compiled at run time", [compile])
breaks("native_python", "the caller's variables are read", [globals])


@special(isinstance)
def is_instance(tracer: Tracer, obj: Any, classes: Any) -> bool:
    if isinstance(obj, torch.Tensor) and torch_private.is_fake(obj):
        hooked = _asked_hook(tracer, classes, "__instancecheck__", obj)
        return _asked(_is_base_tensor_instance, obj, classes) if hooked is None else hooked
    if type(obj) is TracedArray:
        tracer.native_calls.native_reads(classes)
        return issubclass(obj.kind, classes)
    if isinstance(obj, tuple(_SYMBOL_TYPES)):
        return isinstance(obj, classes) or isinstance(_SYMBOL_TYPES[type(obj)](), classes)
    tracer.native_calls.native_reads(classes)
    hooked = _asked_hook(tracer, classes, "__instancecheck__", obj)
    if hooked is not None:
        return hooked
    if isinstance(obj, HOST_ITERATORS):
        return isinstance(_polyfill(obj), classes)
    tracer.entries.guard_lineage(type(obj))
    if tracer.entries.class_may_run_code(type(obj)):
        return _is_instance_by_word(tracer, obj, classes)
    _guard_registries(tracer, type(obj), classes, "__instancecheck__")
    for cls in _flat(classes):
        if getattr(cls, "_is_protocol", False) is True and not is_subtype(type(obj), cls):
            _guard_members(tracer, obj, cls)
    return _asked(isinstance, obj, classes)


def _asked(query: Any, obj: Any, classes: Any) -> bool:
    """Returns the answer of isinstance() or issubclass(); the program gets the TypeError with which
    a class refuses them, such as a TypedDict."""
    try:
        return bool(query(obj, classes))
    except TypeError as error:
        refused = error
    raise TypeError(*refused.args)  # from here: see `NativeCalls._handled`


def _guard_members(tracer: Tracer, obj: Any, protocol: type) -> None:
    """Guards the attributes by which a runtime-checkable protocol knows its instances."""
    if is_constant(obj) or isinstance(obj, torch.Tensor):
        return
    before = tracer.side_effects.activity()
    for name in sorted(typing._get_protocol_attrs(protocol)):  # type: ignore[attr-defined]
        _, raw = tracer.entries.class_entry(type(obj), name)
        if raw is ABSENT or isinstance(raw, types.MemberDescriptorType):
            tracer.attributes.getattr_or(obj, name, None)
        elif not (has_python(raw) or is_native(raw) or is_constant(raw)):
            tracer.break_graph("unknown_native", f"a protocol asks for {name} of an object")
    if tracer.side_effects.activity() != before:
        tracer.break_graph("unknown_native", "a protocol asks for attributes that are computed")


def _is_instance_by_word(tracer: Tracer, obj: Any, classes: Any) -> bool:
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
        claimed_class = tracer.attributes.getattr_or(obj, "__class__", None)
        if isinstance(claimed_class, type) and cls in claimed_class.__mro__:
            return True
    return False


@special(issubclass)
def is_subclass(tracer: Tracer, cls: Any, classes: Any) -> bool:
    tracer.native_calls.native_reads(classes)
    hooked = _asked_hook(tracer, classes, "__subclasscheck__", cls)
    if hooked is not None:
        return hooked
    if not isinstance(cls, type):
        tracer.break_graph("native_python", "issubclass() of what is no class")
    tracer.entries.guard_lineage(cls)
    _guard_registries(tracer, cls, classes, "__subclasscheck__")
    return _asked(issubclass, cls, classes)


def _guard_registries(tracer: Tracer, kind: Any, classes: Any, hook: str) -> None:
    """Guards the answers of abstract classes, whose registries may change at any time."""
    queries, made_class = tracer.native_calls.queries, tracer.entries.made_class
    for cls in _flat(classes):
        if type(cls) is type:
            continue
        tracer.entries.special(type(cls), hook)
        handle = (issubclass, (kind, cls))
        if not isinstance(cls, abc.ABCMeta) or cls in kind.__mro__ or handle in queries:
            continue
        if tracer.effects.attribute(cls, "_is_runtime_protocol") is not None:
            tracer.break_graph("unknown_native", f"{cls.__name__} has become a runtime protocol")
        if not (made_class(kind) or made_class(cls)):
            query_call(tracer, issubclass, kind, cls)


def _flat(classes: Any) -> list[Any]:
    """Returns the classes in the second argument of isinstance."""
    if isinstance(classes, (tuple, types.UnionType)):
        parts = classes if isinstance(classes, tuple) else classes.__args__
        return [cls for part in parts for cls in _flat(part)]
    return [classes]


def _asked_hook(tracer: Tracer, classes: Any, name: str, obj: Any) -> bool | None:
    """Returns the answer of user-defined metaclasses; None if none of these classes has a hook of
    its own."""
    flat = _flat(classes)
    hooks = [_hook(tracer, cls, name) for cls in flat]
    if not any(hooks):
        return None
    simple: Any = isinstance if name == "__instancecheck__" else issubclass
    kind = type(obj)
    if isinstance(obj, torch.Tensor) and torch_private.is_fake(obj):
        simple, kind = _is_base_tensor_instance, torch.Tensor
    for cls, hook in zip(flat, hooks, strict=True):
        if simple is not issubclass and kind is cls:
            return True
        if (
            tracer.operators.to_bool(tracer.calls.call_value(hook, [cls, obj], {}))
            if hook
            else simple(obj, cls)
        ):
            return True
    return False


def _hook(tracer: Tracer, cls: Any, name: str) -> Any:
    match = tracer.entries.python_method(cls, name) if isinstance(cls, type) else None
    return (
        None if match is None or match.__module__.partition(".")[0] in _KNOWN_METACLASSES else match
    )


#: Packages whose metaclass checks read only types and registries.
_KNOWN_METACLASSES = frozenset({"abc", "typing", "torch", "enum", "typing_extensions"})


def _polyfill(iterator: Any) -> Any:
    """Returns an object of the type that an iterator has for the program."""
    return (None for _ in range(0)) if isinstance(iterator, TracedGenerator) else map(iter, ())


def _is_base_tensor_instance(fake: torch.Tensor, classes: Any) -> bool:
    legacy = type(torch.FloatTensor)  # classes of a dtype and device
    if not any(type(cls) is legacy for cls in _flat(classes)):
        return isinstance(_BASE_TENSOR, classes)
    real = torch.empty(0, dtype=fake.dtype, device=fake.device, layout=fake.layout)
    return isinstance(real, classes)


#: An intermediate is a plain torch.Tensor to the program.
_BASE_TENSOR = torch.empty(0)
#: Symbolic type -> the type that the program sees.
_SYMBOL_TYPES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_SYMBOL_OF: dict[type, type] = {int: torch.SymInt, float: torch.SymFloat}


@special(type)
def type_of(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if len(args) != 1:
        return new_class(tracer, [type, *args], kwargs)
    if torch_private.is_fake(args[0]):
        return torch.Tensor
    if isinstance(args[0], HOST_ITERATORS):
        return type(_polyfill(args[0]))
    if type(args[0]) is TracedArray:
        return args[0].kind
    return _SYMBOL_TYPES.get(type(args[0]), type(args[0]))


@special(len)
def length(tracer: Tracer, obj: Any) -> Any:
    if is_array(tracer, obj):
        return array_length(tracer, obj)
    method = tracer.entries.python_method(obj, "__len__")
    if method is not None:
        return special_methods.call_checked(tracer, method, obj, "__len__")
    if tracer.entries.lacks(obj, "__len__") or tracer.entries.is_disabled(obj, "__len__"):
        return len(obj)  # raises Python's own error
    if isinstance(obj, torch.Tensor):
        if tracer.recorder.program_modes:
            tracer.break_graph("torch_mode", "len() of a tensor inside a mode of the program")
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
def import_of(
    tracer: Tracer,
    name: Any,
    globals: Any = None,
    locals: Any = None,
    fromlist: Any = (),
    level: Any = 0,
) -> Any:
    if not isinstance(name, str):
        tracer.break_graph("native_python", "__import__() of what is no name")
    return tracer.names.import_name(tracer.frames[-1], name, fromlist, level)


@special(object.__init__)
def object_init(tracer: Tracer, obj: Any, /, *args: Any, **kwargs: Any) -> None:
    if args or kwargs:
        object.__init__(obj, *args, **kwargs)  # can only raise Python's own error


@special(object.__dict__["__init_subclass__"])
def object_init_subclass(tracer: Tracer, cls: Any, /, *args: Any, **kwargs: Any) -> None:
    if args:
        tracer.break_graph("native_python", "__init_subclass__() refuses its arguments")
    object.__init_subclass__(**kwargs)  # raises Python's own error


@special(hash, object.__hash__, tuple.__hash__, frozenset.__hash__)
def hash_of(tracer: Tracer, obj: Any) -> int:
    return special_methods.hash_of(tracer, obj)


@special_each(list, tuple, set, frozenset)
def collection(tracer: Tracer, kind: Any, iterable: Any = (), /) -> Any:
    if kind in (tuple, frozenset) and type(iterable) is kind:
        return iterable
    items = tracer.containers.spread(iterable, varies=True)
    if kind in (set, frozenset):
        items = [tracer.scalars.concrete(item) for item in items]
        special_methods.realize_keys(tracer, items)
        return kind(special_methods.as_given(iterable, items))
    return kind(items)


@special(collections.deque)
def deque_of(tracer: Tracer, iterable: Any = (), maxlen: Any = None) -> Any:
    return collections.deque(tracer.containers.spread(iterable), maxlen)


@special_each(dict, collections.OrderedDict)
def mapping_of(tracer: Tracer, kind: Any, items: Any = (), /, **kwargs: Any) -> Any:
    result = kind()
    for key, value in pairs_of(tracer, items, kind):
        tracer.containers.setitem(result, key, value)
    result.update(kwargs)
    return result


@special(collections.defaultdict)
def defaultdict_of(tracer: Tracer, factory: Any = None, /, *args: Any, **kwargs: Any) -> Any:
    items = [tracer.calls.call_value(dict, [a], {}) for a in args]
    return collections.defaultdict(factory, *items, **kwargs)


@special_each(int, float, complex)
def number(tracer: Tracer, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A number of what C code converts."""
    value = args[0] if args else None
    if isinstance(value, torch.Tensor):
        if len(args) == 1 and not kwargs and kind is not complex:
            known = state_values.READS[f"__{kind.__name__}__"](tracer, value)
            if known is not None:
                return known
        reads = {int: is_integer, float: is_float}.get(kind)
        if (
            reads is not None
            and len(args) == 1
            and not kwargs
            and reads(value)
            and tracer.recorder.refused(torch.Tensor.item, (value,), {}) is None
        ):
            return tracer.native_calls.call_torch(torch.Tensor.item, [value], {})
        tracer.break_graph("data_dependent_value", f"{kind.__name__}() of a tensor")
    if type(value) in _SYMBOL_TYPES and len(args) == 1 and not kwargs:
        if type(value) is _SYMBOL_OF.get(kind):
            return value
        if kind in _SYMBOL_OF:
            return tracer.scalars.operate(kind, (value,))
    if kind is int and tracer.entries.python_method(value, "__trunc__"):
        if tracer.entries.lacks(value, "__int__", "__index__"):
            tracer.break_graph("side_effect_native", "int() warns of __trunc__")
    return call_with_polyfills(tracer, kind, args, kwargs)


@special_each(bytes, bytearray)
def octets(tracer: Tracer, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Bytes of what C code converts: a number, a buffer or an iterable of numbers."""
    value = args[0] if args else None
    if isinstance(value, torch.Tensor):
        tracer.break_graph("data_dependent_value", f"{kind.__name__}() of a tensor")
    hooks: tuple[str, ...] = (*CONVERSIONS, *ITEMS)
    if len(args) > 1 or kwargs or tracer.operators.has_buffer(value):
        hooks = CONVERSIONS
    elif (
        instances_have(type(value), "__iter__")
        and not isinstance(value, str)
        and not any(tracer.entries.python_method(value, name) for name in hooks)
    ):
        return kind(host_object(tracer, item) for item in tracer.containers.stream(value))
    return call_with_polyfills(tracer, kind, args, kwargs, hooks)


@special(bool)
def bool_of(tracer: Tracer, value: Any = False) -> bool:
    return bool(tracer.operators.to_bool(value))


@special_rows({str: (str, special_methods.str_of), repr: (repr, special_methods.repr_of)})
def text_of(
    tracer: Tracer, kind: Any, answer: Any, object: Any = ABSENT, *args: Any, **kwargs: Any
) -> Any:
    if object is ABSENT:
        return kind(**kwargs)
    object = tracer.scalars.concrete(object)
    if not args and not kwargs:
        return answer(tracer, object)
    tracer.native_calls.native_reads(object, *args)
    return kind(object, *args, **kwargs)


@special(ascii)
def ascii_of(tracer: Tracer, obj: Any) -> str:
    text = special_methods.repr_of(tracer, obj)
    return text if text.isascii() else text.encode("ascii", "backslashreplace").decode("ascii")


@special(format)
def format_of(tracer: Tracer, value: Any, spec: Any = "") -> str:
    if not isinstance(spec, str):
        return format("", spec)  # raises Python's own error
    return tracer.containers.format(value, spec)


@special(super)
def super_of(tracer: Tracer, *args: Any) -> Any:
    return super(*args) if args else instance_creation.zero_argument_super(tracer)


# -- calls that read their callers' frames --
# A call that needs only its caller's variables breaks the graph (`RealMachine` provides them); the
# others run the whole activation as eager Python, as do those that ask who refers to an object. A
# program never sees a frame of the interpreter, nor variables that a resume point has dropped.


def _break_for_variables(tracer: Tracer, function: Any) -> None:
    """Breaks the graph before a call that reads all variables of its caller's frame."""
    if not queries_locals(
        tracer.frames[-1].code.raw
    ):  # through an alias: dead variables may be dropped before
        raise RunEagerly(f"{function.__name__}() is called under another name", True)
    tracer.break_graph("native_python", f"{function.__name__}: the caller's variables are read")


special(locals)(lambda tracer: _break_for_variables(tracer, locals))


@special(vars)
def vars_of(tracer: Tracer, *args: Any) -> Any:
    if len(args) > 1:
        return vars(*args)  # raises Python's own error
    if not args:
        _break_for_variables(tracer, vars)
    result = tracer.attributes.getattr_or(args[0], "__dict__", ABSENT)
    if result is ABSENT:
        raise TypeError("vars() argument must have __dict__ attribute")
    return result


@special(dir)
def dir_of(tracer: Tracer, *args: Any) -> Any:
    if not args:
        _break_for_variables(tracer, dir)
    method = tracer.entries.python_method(args[0], "__dir__")
    if method is None:
        tracer.break_graph("native_python", "dir() lists names that are not guarded")
    return tracer.calls.call_value(sorted, [tracer.calls.call_value(method, [args[0]], {})], {})


@special_each(eval, exec)
def run_text(
    tracer: Tracer, function: Any, source: Any, namespace: Any = None, *args: Any, **kwargs: Any
) -> Any:
    if namespace is None:
        _break_for_variables(tracer, function)
    tracer.break_graph("native_python", f"{function.__name__}: code is compiled at run time")


@special_each(sys.getrefcount, gc.get_referrers, gc.get_objects)
def ask_for_references(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    raise RunEagerly(f"{function.__name__}() sees the references that a trace makes", True)


@special_each(*FRAME_QUERIES)
def ask_for_frames(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    raise RunEagerly(
        f"{function.__name__}() gives frames of the program, which only plain Python has", True
    )


# -- id --

#: Objects that are usually the same in all calls, so that their id may be guarded.
_GUARDED_BY_ID = (
    torch.nn.Module, torch.nn.Parameter, *classes("optim.Optimizer"), type, types.FunctionType,
    types.ModuleType,
)  # fmt: skip
#: Functions that use an object's id to detect recursive reprs.
_REPR_GUARDS = frozenset({("dataclasses", "wrapper"), ("reprlib", "wrapper")})


@special(id)
def identity(tracer: Tracer, obj: Any) -> Any:
    frame = tracer.frames[-1]
    if (frame.globals.get("__name__"), frame.code.raw.co_name) in _REPR_GUARDS:
        return id(obj)
    if isinstance(obj, _GUARDED_BY_ID) and not tracer.provenance.is_fresh(obj):
        return guarded_calls.identity(tracer, obj)
    tracer.break_graph("unknown_native", "id: the address of an object differs between calls")
