"""Runs the code region behind a predicted branch (`contract.branch_prediction`)."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import MISS
from tracer_core.contract.branch_prediction import CURRENT, Mispredicted, Prediction
from tracer_core.errors import TracerError
from tracer_core.execution.capture_lock import can_trace
from tracer_core.execution.entry.resume_function import GRAPH_RAISED, Continuation, Exit

use_own_builtins(globals())


def run_predicted(continuation: Continuation) -> tuple[Exit, tuple[Any, ...], Any] | None:
    """Runs the region behind the likely outcome of the branch at a break.

    Returns the exit of the branch, the state there and what the region returns. None if nothing was
    predicted, no entry fits or the branch goes the other way: the continuation is then untouched.
    Raises TracerError if a runner breaks the contract of `commit`.
    """
    if not can_trace():  # a mode of the program would see the tensor being copied
        return None
    branch = continuation.resume_function
    outcome = branch.outcomes.outcome  # once: other threads note others
    predicted = branch.predict(continuation.values, outcome)
    if predicted is None:
        return None
    (exit, state), condition = predicted
    entry = None if exit.region is None else exit.region.hot_entry(state)
    if entry is None or not getattr(entry, "commits", False):
        return None
    try:
        prediction = Prediction(condition, outcome, state, continuation)
    except Exception:  # of the device, which the branch itself raises, too
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
    if prediction.is_right:
        return exit, state, result
    raised = type(result) is Continuation and result.resume_function is GRAPH_RAISED
    if result is not MISS and not raised:
        raise TracerError("a runner whose `commits` is true returned without a call of `commit`")
    return None
