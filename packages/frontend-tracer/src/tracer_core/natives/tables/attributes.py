"""getattr, setattr, delattr and the slots of object and type behind them."""

from __future__ import annotations

from typing import Any

from tracer_core.guards.object_layout import HEAP_TYPE
from tracer_core.natives.effects import special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace.dict_entries import ABSENT


def _is_name(args: list[Any]) -> None:
    if len(args) > 1 and not isinstance(args[1], str):
        getattr(object(), args[1])  # raises Python's own error


def _is_name_of_class(tracer: Tracing, args: list[Any]) -> None:
    if not args[0].__flags__ & HEAP_TYPE:  # rejected before its name is checked
        tracer.break_graph("unsupported_mutation", f"an attribute of {args[0].__name__} is set")
    _is_name(args)


@special(getattr)
def get_attribute(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    _is_name(args)
    if len(args) == 2:
        return tracer.attributes.getattr(args[0], args[1])
    try:
        return tracer.attributes.getattr(args[0], args[1])
    except AttributeError:
        return args[2]


@special(hasattr)
def has_attribute(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> bool:
    _is_name(args)
    return bool(tracer.attributes.has_attribute(*args))


@special(setattr)
def set_attribute(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _is_name(args)
    tracer.attribute_writes.setattr(*args)


@special(delattr)
def delete_attribute(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _is_name(args)
    tracer.attribute_writes.delattr(*args)


@special(object.__setattr__)
def object_setattr(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _is_name(args)
    tracer.attribute_writes.generic_setattr(*args)


@special(type.__setattr__)
def type_setattr(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _is_name_of_class(tracer, args)
    tracer.attribute_writes.set_class_attribute(args[0], args[1], args[2])


@special(type.__delattr__)
def type_delattr(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _is_name_of_class(tracer, args)
    tracer.attribute_writes.set_class_attribute(args[0], args[1], ABSENT)


@special(type.__getattribute__)
def type_getattribute(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    _is_name(args)
    return tracer.attributes.plain_class_attribute(*args)


@special(object.__getattribute__)
def object_getattribute(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    _is_name(args)
    return tracer.attributes.generic_getattr(*args)


@special(object.__delattr__)
def object_delattr(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    _is_name(args)
    tracer.attribute_writes.generic_setattr(args[0], args[1], ABSENT)
