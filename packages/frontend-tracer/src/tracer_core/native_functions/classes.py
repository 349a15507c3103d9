"""Class creation: the class statement, type(), and the standard library's class factories."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import builtins
import collections
import dataclasses
import types
import typing
from typing import Any

import torch

from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import PURE, declare, special, special_each
from tracer_core.trace import class_creation, instance_creation
from tracer_core.trace.tracer import Tracer

declare(PURE, [types.get_original_bases] if hasattr(types, "get_original_bases") else [])
special(type.__dict__["__prepare__"])(lambda tracer, *args, **kwargs: {})


@special(type.__init__)
def type_init(tracer: Tracer, cls: Any, /, *args: Any, **kwargs: Any) -> None:
    """Does nothing but count its arguments."""
    if len(args) not in (1, 3) or (kwargs and len(args) == 1):
        tracer.break_graph("native_python", "the arguments do not fit type.__init__()")


@special(property.__init__)
def property_init(tracer: Tracer, descriptor: Any, /, *args: Any, **kwargs: Any) -> None:
    """Of a property that the trace made: it keeps its functions and reads a docstring."""
    if not tracer.provenance.is_fresh(descriptor):
        tracer.break_graph("unsupported_mutation", "a property from before is initialized again")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    property.__init__(descriptor, *args, **kwargs)


@special(builtins.__build_class__)
def build_class(tracer: Tracer, body: Any, name: Any, /, *bases: Any, **kwargs: Any) -> Any:
    return class_creation.build_class(tracer, [body, name, *bases], kwargs)


@special(type.__new__)
def type_new(tracer: Tracer, /, *args: Any, **kwargs: Any) -> Any:
    return class_creation.new_class(tracer, [*args], kwargs)


@special(type.__call__)
def type_call(tracer: Tracer, cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    return instance_creation.construct(tracer, cls, [*args], kwargs)


@special(_abc._abc_init)
def abc_init(tracer: Tracer, cls: Any) -> None:
    if not tracer.entries.made_class(cls):
        tracer.break_graph(
            "unsupported_mutation", f"the abstract methods of {cls.__name__} are collected"
        )
    _abc._abc_init(cls)


@special(dataclasses._process_class)  # type: ignore[attr-defined]
def process_class(tracer: Tracer, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """@dataclass on a class: the standard library generates and runs code."""
    if not tracer.entries.made_class(cls):
        tracer.break_graph(
            "class_statement", f"{cls.__name__}, which existed before, becomes a dataclass"
        )
    for name, value in cls.__dict__.items():
        is_field = isinstance(value, dataclasses.Field)
        held = (value.default, value.default_factory) if is_field else (value,)
        if any(isinstance(item, torch.Tensor) for item in held):
            tracer.break_graph(
                "class_statement", f"the field {name!r} of a dataclass has a tensor as default"
            )
    before = dict(cls.__dict__)
    try:
        result = dataclasses._process_class(cls, *args, **kwargs)  # type: ignore[attr-defined]
    except Exception:
        class_creation.put_back(cls, before)  # what it had set when it found the error
        raise
    class_creation.note_class(tracer, result)
    tracer.entries.forget_entries()
    return result


@special(dataclasses.fields)
def fields(tracer: Tracer, class_or_instance: Any) -> Any:
    """Reads only an instance's class."""
    cls = class_or_instance if isinstance(class_or_instance, type) else type(class_or_instance)
    _, held = tracer.entries.class_entry(cls, "__dataclass_fields__")
    result = dataclasses.fields(class_or_instance)  # raises Python's own error
    if isinstance(held, dict) and not tracer.entries.made_class(cls):
        for field in result:  # by its import path, so that another process finds it
            tracer.reads.dict_get(held, field.name, None)
    return result


@special(collections.namedtuple)
def namedtuple(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    values = [*args, *kwargs.values()]
    tracer.native_calls.native_reads(*values)
    if not all(is_constant(tuple(v) if isinstance(v, list) else v) for v in values):
        tracer.break_graph(
            "class_statement", "collections.namedtuple() of values that are not plain"
        )
    kwargs.setdefault("module", tracer.frames[-1].globals.get("__name__", "__main__"))
    result = collections.namedtuple(*args, **kwargs)  # type: ignore[misc]
    class_creation.note_class(tracer, result)
    return result


@special(typing.NamedTupleMeta.__new__)  # type: ignore[attr-defined]
def typed_namedtuple(tracer: Tracer, meta: Any, name: Any, bases: Any, namespace: Any) -> Any:
    for key, value in namespace.items():
        if key not in ("__annotations__", "__orig_bases__") and (
            isinstance(value, torch.Tensor) or tracer.entries.python_method(value, "__set_name__")
        ):
            tracer.break_graph(
                "class_statement", f"the named tuple {name} holds a tensor or a descriptor"
            )
    tuple_class = typing.NamedTupleMeta.__new__(meta, name, bases, namespace)  # type: ignore[attr-defined]
    class_creation.note_class(tracer, tuple_class)
    return tuple_class


# -- type variables and generic classes --


@special_each(typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)
def type_variable(tracer: Tracer, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    result = kind(*args, **kwargs)
    result.__module__ = tracer.frames[-1].function.__module__  # kind() found the tracer's module
    return tracer.native_calls.note_allocation(result)


if isinstance(typing.Generic.__dict__["__init_subclass__"], types.ClassMethodDescriptorType):
    # C functions since 3.12 that call typing's functions.

    @special(typing.Generic.__dict__["__init_subclass__"])
    def generic_init_subclass(tracer: Tracer, /, *args: Any, **kwargs: Any) -> Any:
        return tracer.calls.call_value(typing._generic_init_subclass, [*args], kwargs)  # type: ignore[attr-defined]
