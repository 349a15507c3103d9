"""Runs the code region behind a predicted branch (`bytecode.branch_prediction`)."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.branch_prediction import CURRENT, Mispredicted
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.execution.capture_lock import can_trace
from tracer_core.execution.entry.resume_function import Continuation, Exit

use_own_builtins(globals())


def run_predicted(continuation: Continuation) -> tuple[Exit, tuple[Any, ...], Any] | None:
    """Runs the region behind the likely outcome of the branch at a break.

    Returns the exit of the branch, the state there and what the region returns. None if nothing was
    predicted, no entry fits or the branch goes the other way: the continuation is then untouched.
    """
    if not can_trace():  # a mode of the program would see the tensor being copied
        return None
    predicted = continuation.resume_function.predict(continuation)
    if predicted is None:
        return None
    exit, prediction = predicted
    state = prediction.state
    entry = None if exit.region is None else exit.region.hot_entry(state)
    if entry is None or not getattr(entry, "commits", False):
        return None
    outer, CURRENT.prediction = CURRENT.prediction, prediction  # of a finalizer's caller
    try:
        result = entry(state)
    except Mispredicted:
        return None
    except Exception:
        if prediction.is_right:
            raise
        return None
    finally:
        CURRENT.prediction = outer
    if not prediction.is_right:
        return None
    return exit, state, result
