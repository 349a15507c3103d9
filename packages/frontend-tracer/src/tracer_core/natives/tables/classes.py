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

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives.effects import PURE, declare, special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import class_creation, instances

special(builtins.__build_class__)(class_creation.build_class)
special(type.__new__)(class_creation.new_class)
declare(PURE, [types.get_original_bases] if hasattr(types, "get_original_bases") else [])


@special(type.__dict__["__prepare__"])
def prepare(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {}


@special(type.__init__)
def type_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    """type.__init__ does nothing."""


@special(type.__call__)
def type_call(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return instances.construct(tracer, args[0], args[1:], kwargs)


@special(_abc._abc_init)
def abc_init(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    (cls,) = args
    if not tracer.entries.made_class(cls):
        tracer.break_graph(
            "unsupported_mutation", f"the abstract methods of {cls.__name__} are collected"
        )
    _abc._abc_init(cls)


@special(dataclasses._process_class)  # type: ignore[attr-defined]
def process_class(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """@dataclass on a class: the standard library generates and runs code."""
    cls = args[0]
    if not tracer.entries.made_class(cls):
        tracer.break_graph(
            "class_statement", f"{cls.__name__}, which existed before, becomes a dataclass"
        )
    for name, value in cls.__dict__.items():
        held = (
            [value.default, value.default_factory]
            if isinstance(value, dataclasses.Field)
            else [value]
        )
        if any(isinstance(one, torch.Tensor) for one in held):
            tracer.break_graph(
                "class_statement", f"the field {name!r} of a dataclass has a tensor as default"
            )
    made = dataclasses._process_class(*args, **kwargs)  # type: ignore[attr-defined]
    class_creation.note_class(tracer, made)
    tracer.entries.forget_entries()
    return made


@special(dataclasses.fields)
def fields(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Reads only an instance's class."""
    (owner,) = args
    cls = owner if isinstance(owner, type) else type(owner)
    _, held = tracer.entries.class_entry(cls, "__dataclass_fields__")
    found = dataclasses.fields(owner)  # raises Python's own error
    if not isinstance(held, dict) or tracer.entries.made_class(cls):
        return found
    for field in found:
        tracer.reads.dict_get(
            held, field.name, None
        )  # by its import path, so that another process finds it
    return found


@special(collections.namedtuple)
def namedtuple(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    if not all(
        map(
            is_constant, [tuple(a) if isinstance(a, list) else a for a in (*args, *kwargs.values())]
        )
    ):
        tracer.break_graph(
            "class_statement", "collections.namedtuple() of values that are not plain"
        )
    kwargs.setdefault("module", tracer.frames[-1].globals.get("__name__", "__main__"))
    made = collections.namedtuple(*args, **kwargs)  # type: ignore[misc]
    class_creation.note_class(tracer, made)
    return made


@special(typing.NamedTupleMeta.__new__)  # type: ignore[attr-defined]
def typed_namedtuple(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    meta, name, bases, namespace = args
    held = [
        value
        for key, value in namespace.items()
        if key not in ("__annotations__", "__orig_bases__")
    ]
    if any(
        isinstance(value, torch.Tensor) or tracer.entries.python_method(value, "__set_name__")
        for value in held
    ):
        tracer.break_graph(
            "class_statement", f"the named tuple {name} holds a tensor or a descriptor"
        )
    made = typing.NamedTupleMeta.__new__(meta, name, bases, namespace)  # type: ignore[attr-defined]
    class_creation.note_class(tracer, made)
    for base in made.__mro__[1:-2]:
        class_creation.note_class(tracer, base)
    return made
