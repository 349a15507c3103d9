"""Graphs that are compiled at their second call, because the first one makes what it demands to be missing.

In a first training step the optimizer makes its state, and parameters get their first gradients. The
step's guards demand that neither is there, so no later call uses its entry, unless the program drops
both again. Such a graph runs in eager mode; a second call of the entry compiles it.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CellType
from typing import Any

from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.execution.tiers.background_entry import may_run_eagerly
from tracer_core.fx_capture.object_mutations import MISSING, Change, ClassAttribute, Gradient, Slot
from tracer_core.limits import MAX_COMPILED_FIRST_STEP
from tracer_core.options import CompileConfig
from tracer_core.registry.torch_style import TorchStyle

#: Kinds of changes of one attribute or variable.
_ONE_VALUE = (Slot, ClassAttribute, CellType)


def waits(captured: CapturedGraph, config: CompileConfig, changes: Iterable[Change]) -> bool:
    """Returns whether a graph is compiled at its second call. Small graphs, and those of callable
    backends, whose authors look at each, are compiled at once."""
    if config.when == "background" or isinstance(config.backend.compile, TorchStyle):
        return False
    n_calls = sum(node.op in ("call_function", "call_method") for node in captured.gm.graph.nodes)
    return (
        n_calls > MAX_COMPILED_FIRST_STEP
        and any(map(_makes_what_was_missing, changes))
        and may_run_eagerly(captured, config)
    )


def _makes_what_was_missing(change: Change) -> bool:
    """Returns whether an object has an attribute, key or gradient afterwards that the trace has
    found missing, or None: guards demand that it still is."""
    if change.kind is Gradient:
        return change.after is not None and change.obj.grad is None
    before, after = change.before, change.after
    if isinstance(before, dict):
        return any(not _is_there(before.get(key)) and _is_there(after[key]) for key in after)
    return change.kind in _ONE_VALUE and not _is_there(before) and _is_there(after)


def _is_there(value: Any) -> bool:
    return value is not None and value is not MISSING
