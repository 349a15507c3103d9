"""Weak references, and the containers of the weakref module."""

from __future__ import annotations

import types
import weakref
from typing import Any

from tracer_core.native_effects.effects import breaks, methods_of, special, special_each
from tracer_core.trace.tracer import Tracer


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
        for method in methods_of(cls, _CHANGING)
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
