"""The hook specification: what a plug-in of the entry-point group ``tracer_core`` may implement.

A plug-in is a module (or object) whose functions are marked with `tracer_core.plugin_api.hookimpl`.
It may leave out arguments that it does not need, so arguments can be added here without breaking
plug-ins.

Hooks run during compilation, never on a compiled call. No result depends on the order in which
plug-ins were installed. An exception from a listener is logged, and compilation goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pluggy

from tracer_core.contract.backend import PROJECT, Backend

if TYPE_CHECKING:
    import torch

hookspec = pluggy.HookspecMarker(PROJECT)


@hookspec
def tracer_backends() -> Sequence[Backend]:
    """Returns the backends that this plug-in offers.

    Called once per process, when backends are first listed or looked up. Must not import the
    engine: `Backend` takes ``"module:attribute"`` strings for that.

    Returns:
        One `Backend` per name.
    """
    raise NotImplementedError


@hookspec
def tracer_graph_captured(name: str, gm: torch.fx.GraphModule, backend: str) -> None:
    """Called when a graph was captured and is about to be compiled.

    Args:
        name: The graph's name (``graph_0``).
        gm: The torch-level graph; must not be changed.
        backend: The backend's name.
    """


@hookspec
def tracer_graph_break(kind: str, reason: str, location: str, hint: str, library: str) -> None:
    """Called when capture stops at an instruction, which will run eagerly.

    Args:
        kind: Its name in the table of graph breaks.
        reason: What happened.
        location: ``file:line in function`` of the user's code.
        hint: What would remove the break, or "".
        library: The line of a library that breaks, below the user's; "" where it is the user's.
    """


@hookspec
def tracer_recompile(function: str, reason: str, count: int) -> None:
    """Called when a function is compiled again because no cache entry's guards held.

    Args:
        function: Its qualified name.
        reason: The guard that failed, as a Python expression.
        count: The number of its cache entries.
    """


@hookspec
def tracer_stage_finished(graph: str, stage: str, seconds: float, text: str) -> None:
    """Called when a stage of a compilation has ended.

    Args:
        graph: The graph's name (``graph_0``), or "" if the stage belongs to none.
        stage: The stage's name.
        seconds: Wall time, including nested stages.
        text: The result of the stage as text, or "".
    """
