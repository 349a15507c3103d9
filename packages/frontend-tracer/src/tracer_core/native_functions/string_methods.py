"""Methods of strings and bytes, numbers, ranges and slices, which read immutable values."""

from __future__ import annotations

import sys
from typing import Any

from tracer_core.bytecode.template_strings import INTERPOLATION, TEMPLATE
from tracer_core.native_effects.effects import (
    MUTATES,
    PURE,
    SHALLOW,
    declare,
    methods_in_c,
    methods_of,
    special,
)
from tracer_core.trace import native_reads, special_methods
from tracer_core.trace.host_objects import text_part
from tracer_core.trace.tracer import Tracer

declare(PURE, [str.maketrans, bytes.maketrans, bytearray.maketrans])
declare(
    MUTATES,
    methods_of(
        bytearray,
        "append clear extend insert pop remove reverse __setitem__ __delitem__ __iadd__ __imul__",
    ),
)
if sys.version_info >= (3, 14):
    declare(SHALLOW, [INTERPOLATION])

    @special(TEMPLATE)
    def template(tracer: Tracer, /, *parts: Any) -> Any:
        return tracer.native_calls.note_allocation(TEMPLATE(*parts))


@special(str.join, bytes.join, bytearray.join)
def join(tracer: Tracer, glue: Any, iterable: Any) -> Any:
    items = [tracer.scalars.payload(item) for item in tracer.containers.spread(iterable)]
    glue = tracer.scalars.payload(glue)
    native_reads.read_values(tracer, glue, items)
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
for _cls in (str, bytes, int, float, complex, bool, range, slice, type(None), bytearray):
    declare(PURE, methods_in_c(_cls, without=_UNREAD), rest=True)
