"""Traces calls of classes: follows `__new__` and `__init__` where they are Python.

A class with instances that cannot be traced (finalizers, tensor subclasses, unknown C bases) causes
a graph break before an instance is made.
"""

from __future__ import annotations

import collections
import enum
import types
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.graph_breaks import Break, RunEagerly
from tracer_core.guards.object_layout import IS_ABSTRACT, flags
from tracer_core.native_effects.effects import effect_of
from tracer_core.trace.attribute_lookup import ABSENT, has_python, is_native, is_slot, is_subtype

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

use_own_builtins(globals())

_SAFE_CLASSES = (
    torch.Size, torch.device, torch.finfo, torch.iinfo, torch.dtype, slice, range,
    types.SimpleNamespace, types.MethodType, types.CellType, types.MappingProxyType,
)  # fmt: skip
_METHODS_IN_C = frozenset({types.MethodDescriptorType, types.WrapperDescriptorType})
#: Types whose ``__new__`` makes an empty object, whatever the arguments.
_FILLED_BY_INIT = (
    dict, list, set, collections.OrderedDict, collections.defaultdict, collections.deque, property
)  # fmt: skip


def instantiate(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    row = effect_of(cls)
    if row is not None:
        return tracer.native_calls.apply_effect(row, cls, args, kwargs)
    if issubclass(cls, torch.Tensor):
        if cls is torch.Tensor:
            return tracer.native_calls.call_torch(cls, args, kwargs)
        return construct(tracer, cls, args, kwargs)
    if isinstance(cls, enum.EnumMeta) and (len(args) > 1 or "names" in kwargs) and not len(cls):
        raise Break("class_statement", "an enumeration is made by a call")
    if isinstance(cls, enum.EnumMeta) or cls in _SAFE_CLASSES or issubclass(cls, enum.Enum):
        tracer.native_calls.native_reads(*args, *kwargs.values())
        if holds_tensor((args, kwargs)):  # for the recorder: range(tensor) reads the value
            return tracer.native_calls.native(cls, *args, **kwargs)
        return cls(*args, **kwargs)
    if (
        issubclass(cls, tuple)
        and hasattr(cls, "n_sequence_fields")
        and len(args) == 1
        and not kwargs
    ):
        make: Any = cls  # a named tuple written in C
        return make(tracer.containers.spread(args[0]))
    meta = type(cls)
    if meta is not type:
        meta_call = tracer.entries.special(meta, "__call__")
        if has_python(meta_call):
            return tracer.calls.prepare(meta_call, [cls, *args], kwargs)
        if not is_slot(meta_call, "__call__"):
            return tracer.calls.prepare(
                tracer.attributes.special(cls, "__call__", None), args, kwargs
            )
    return construct(tracer, cls, args, kwargs)


def construct(tracer: Tracer, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Traces type.__call__: ``__new__``, then ``__init__``."""
    if tracer.entries.static(cls, "__del__") is not ABSENT:
        raise Break("finalizer", f"a {cls.__qualname__} is made")
    if issubclass(cls, torch.autograd.Function):
        raise Break("higher_order", f"{cls.__name__} is an autograd.Function")
    _, new = tracer.entries.class_entry(cls, "__new__")
    if isinstance(new, staticmethod):
        new = new.__func__
    elif not is_native(new):
        new = tracer.attributes.getattr(cls, "__new__")
    if new is torch.Tensor.__new__:
        raise Break("tensor_subclass", f"a {cls.__name__} is made")
    if new is object.__new__:
        if flags(cls) & IS_ABSTRACT:
            return object.__new__(cls, *args, **kwargs)  # raises Python's own error
        if any(map(_is_made_in_c, cls.__mro__[:-1])):
            raise Break(
                "unknown_native", f"a {cls.__qualname__}, which may hold data of C, is made"
            )
        obj = object.__new__(cls)
    else:
        obj = tracer.calls.call_value(new, [cls, *args], kwargs)
    if not is_subtype(type(obj), cls):
        return obj
    if not issubclass(cls, torch.Tensor):
        _query_class(tracer, obj)
    return _initialise(tracer, obj, args, kwargs)


def _is_made_in_c(cls: type) -> bool:
    """Returns whether C code has made a class: it defines methods that only C types define."""
    return any(
        type(entry) in _METHODS_IN_C and entry.__objclass__ is cls
        for entry in type.__dict__["__dict__"].__get__(cls).values()
    )


def _query_class(tracer: Tracer, obj: Any) -> None:
    """Leaves the program to eager Python if asking an object for its ``__class__``, as isinstance()
    in the tracer's own code does, runs a method that does more than answer, or gives another."""
    cls, static = type(obj), tracer.entries.static
    simple = is_slot(static(cls, "__getattribute__"), "__getattribute__")
    if simple and static(cls, "__class__") is object.__dict__["__class__"]:
        return
    before = tracer.side_effects.activity()
    try:
        claimed_class = tracer.attributes.getattr_or(obj, "__class__", cls)
    except Exception as error:
        raise RunEagerly(f"a {cls.__name__} asked for its class raises") from error
    if claimed_class is not cls or tracer.side_effects.activity() != before:
        raise RunEagerly(f"a {cls.__name__} asked for its class does more than say it")


def new_object(tracer: Tracer, new: Any, cls: type, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Traces ``__new__`` of a C base called for a Python class."""
    owner = getattr(new, "__self__", None)
    if owner is object:
        return object.__new__(cls)
    if owner in _FILLED_BY_INIT:
        return owner.__new__(cls)
    if owner in (tuple, frozenset):
        _, init = tracer.entries.class_entry(cls, "__init__")
        if len(args) > 1 or (kwargs and init is object.__init__):
            return owner.__new__(cls, *args, **kwargs)  # raises Python's own error
        if args and owner is frozenset:  # hashes and compares its members
            args = [tracer.calls.call_value(frozenset, args, {})]
        return owner.__new__(cls, *map(tracer.containers.spread, args))
    if owner in (str, int, float, bytes, complex) or (
        isinstance(owner, type) and issubclass(owner, BaseException)
    ):
        if owner in (str, int, float, complex) and len(args) == 1 and not kwargs:
            args = [tracer.calls.call_value(owner, args, {})]
        tracer.native_calls.native_reads(*args)
        return owner.__new__(cls, *args, **kwargs)
    if tracer.entries.class_may_run_code(cls):  # _query_class would not see the object
        raise RunEagerly(f"a {cls.__name__} may do more than say its class")
    raise Break(
        "unknown_native", f"{getattr(owner, '__qualname__', owner)}.__new__ for {cls.__name__}"
    )


def _initialise(tracer: Tracer, obj: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    cls = type(obj)
    _, init = tracer.entries.class_entry(cls, "__init__")
    if init is object.__init__:
        if (args or kwargs) and tracer.entries.static(cls, "__new__") is object.__new__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return obj
    if issubclass(cls, torch.Tensor):
        init = torch_private.behind_shields(init)
    if is_native(init):
        tracer.calls.call_value(init, [obj, *args], kwargs)
        return obj
    if has_python(init):
        frame = tracer.calls.prepare(init, [obj, *args], kwargs)
    else:
        bound = tracer.attributes.special(obj, "__init__", None)
        frame = tracer.calls.prepare(bound, args, kwargs)
    if type(frame) is Frame:
        frame.on_return = ("instance", obj)
        return frame
    tracer.require_none(frame)
    return obj


def super_cells(frame: Frame) -> tuple[int, Any]:
    """Returns the index of the variable ``__class__`` of a function that calls super(), and the
    value of its first one. Raises as CPython does where super() needs arguments."""
    code = frame.code
    if not code.raw.co_argcount:
        raise RuntimeError("super(): no arguments")
    names = code.locals_names
    # without __class__, a break may have dropped the argument, which is dead then
    deletes = zip(code.names, code.args, strict=True)
    if frame.locals[0] is NULL and ("__class__" in names or ("DELETE_FAST", 0) in deletes):
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in names:
        raise RuntimeError("super(): __class__ cell not found")
    return names.index("__class__"), frame.locals[0]


def zero_argument_super(tracer: Tracer) -> Any:
    """Traces super(), which reads ``__class__`` and the first argument of the calling frame."""
    frame = tracer.frames[-1]
    owner, _ = super_cells(frame)
    cls = tracer.names.cell_contents(tracer.load(frame, owner))
    if cls is NULL:
        raise RuntimeError("super(): empty __class__ cell")
    first = tracer.load(frame, 0)
    if isinstance(first, types.CellType):
        first = tracer.names.load_cell(first, frame.code.locals_names[0])
    return super(cls, first)


def holds_tensor(value: Any, depth: int = 6) -> bool:
    """Returns whether native code that receives `value` may find a tensor in it."""
    if isinstance(value, torch.Tensor):
        return True
    if depth == 0 or not isinstance(
        value, (list, tuple, dict, set, frozenset, collections.deque, slice)
    ):
        return depth == 0
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    return any(
        holds_tensor(item, depth - 1)
        for item in (dict.values(value) if isinstance(value, dict) else value)
    )
