"""Methods of exceptions: notes, and the parts of exception groups."""

from __future__ import annotations

import sys
import types
from typing import Any

from tracer_core.native_effects.effects import PURE, declare, special, special_each
from tracer_core.trace.tracer import Tracer


def _is_condition(value: Any) -> bool:
    """Whether `split` calls a value: a function, from Python 3.13 on all but classes."""
    if sys.version_info < (3, 13):
        return isinstance(value, types.FunctionType)
    return callable(value) and not isinstance(value, type)


@special_each(BaseExceptionGroup.split, BaseExceptionGroup.subgroup)
def split_group(tracer: Tracer, method: Any, group: Any, condition: Any) -> Any:
    """split and subgroup: the condition may be a user function."""
    tracer.exceptions.look_into(group)
    if tracer.entries.python_method(group, "derive"):
        tracer.break_graph(
            "unknown_native", f"{type(group).__name__}.derive is asked by {method.__name__}"
        )

    def holds(error: BaseException) -> bool:
        return tracer.operators.to_bool(tracer.calls.call_value(condition, [error], {}))

    matched = method(group, holds if _is_condition(condition) else condition)
    for part in matched if isinstance(matched, tuple) else (matched,):
        if part is not None and part is not group:
            tracer.exceptions.same_history(group, part)
    return matched


declare(PURE, [BaseExceptionGroup.derive])


@special(BaseException.add_note)
def add_note(tracer: Tracer, error: Any, note: Any) -> None:
    if not tracer.provenance.is_fresh(error):
        tracer.break_graph(
            "unsupported_mutation", "a note is added to an exception from before this segment"
        )
    tracer.side_effects.mutations += 1
    error.add_note(note)
