"""Events of a compilation, sent to the logs and to listening plug-ins.

The tracer and `tracer_core.debug.stages` call these functions; they write lines under TRACER_LOGS
and call the hooks of `tracer_core.hookspecs`. None is called on a compiled call. An exception from
a listener is logged with the name of its plug-in, and stops neither the compilation nor the other
listeners.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tracer_core.debug.logs import enabled, logger, note
from tracer_core.debug.stages import StageRecord, observe, unobserve
from tracer_core.registry.discovery import manager

if TYPE_CHECKING:
    import torch


def graph_captured(*, name: str, gm: torch.fx.GraphModule, backend: str) -> None:
    """Reports that a torch-level graph is about to be compiled; see
    `hookspecs.tracer_graph_captured`.
    """
    if enabled("graph"):
        note("graph", "%s for backend %s:\n%s", name, backend, gm.graph)
    _tell("tracer_graph_captured", name=name, gm=gm, backend=backend)


def graph_break(
    *, kind: str, reason: str, location: str, hint: str = "", library: str = ""
) -> None:
    """Reports that capture stopped at an instruction; see `hookspecs.tracer_graph_break`."""
    if enabled("graph_breaks"):
        below = f" (in {library})" if library else ""
        remedy = f"; what would remove it: {hint}" if hint else ""
        note("graph_breaks", "%s%s: %s [%s]%s", location, below, reason, kind, remedy)
    _tell(
        "tracer_graph_break",
        kind=kind,
        reason=reason,
        location=location,
        hint=hint,
        library=library,
    )


def first_call(*, summary: str, broken: bool) -> None:
    """Reports the end of the first call of a compiled function.

    summary: one line about what was captured. A function with graph breaks is logged as a warning,
    any other at level INFO.
    """
    logger().log(logging.WARNING if broken else logging.INFO, "%s%s", summary,
                 "; tracer_core.explain(f)(*args) tells more" if broken else "")  # fmt: skip


def recompile(*, function: str, reason: str, count: int) -> None:
    """Reports that a function is compiled again; see `hookspecs.tracer_recompile`."""
    if enabled("recompiles"):
        note("recompiles", "%s (entry %d): %s", function, count, reason)
    _tell("tracer_recompile", function=function, reason=reason, count=count)


def _tell(hook: str, **arguments: Any) -> None:
    for hookimpl in reversed(getattr(manager().hook, hook).get_hookimpls()):
        try:
            hookimpl.function(*(arguments[name] for name in hookimpl.argnames))
        except Exception:
            text = "%s() of the plug-in %s raised; the compile goes on"
            logger().warning(text, hook, hookimpl.plugin_name, exc_info=True)


def _stage_finished(record: StageRecord) -> None:
    _tell(
        "tracer_stage_finished",
        graph=record.graph,
        stage=record.name,
        seconds=record.seconds,
        text=record.text,
    )


def follow_stages() -> None:
    """Sends finished stages to the plug-ins that implement `tracer_stage_finished`, if any.

    `api.compile` calls this, so that without such a plug-in no stage builds its text.
    """
    if manager().hook.tracer_stage_finished.get_hookimpls():
        observe(_stage_finished)
    else:
        unobserve(_stage_finished)
