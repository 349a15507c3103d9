"""Type variables and generic classes."""

from __future__ import annotations

import types
import typing
from typing import Any

from tracer_core.natives.effects import special
from tracer_core.natives.tracing import Tracing


def _in_module(kind: Any) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        tracer.native_calls.native_reads(*args, *kwargs.values())
        made = kind(*args, **kwargs)
        made.__module__ = tracer.frames[
            -1
        ].function.__module__  # kind() itself found the tracer's module
        return made

    return handler


for _kind in (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple):
    special(_kind)(_in_module(_kind))

if isinstance(typing.Generic.__dict__["__init_subclass__"], types.ClassMethodDescriptorType):
    # C functions since 3.12 that call typing's functions.

    @special(typing.Generic.__dict__["__init_subclass__"])
    def generic_init_subclass(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return tracer.calls.call_value(typing._generic_init_subclass, args, kwargs)  # type: ignore[attr-defined]
