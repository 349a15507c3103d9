"""What a compile of ours did: graphs, breaks, fallbacks, kernels.

In: a backend's name. Out: a `Watch`, whose `backend` is given to `tracer_core.compile`. What always
holds: the backend compiles what it would compile without being watched; nothing is added to a call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tracer_core import register
from tracer_core.plugin_api import Backend, get_backend, hookimpl, resolve


class Watch:
    """Watches one backend (mutable: it counts), and the events of this process.

    backend: what to compile with. graphs: captured. breaks: where capture stopped. kernels,
    operators: of the inductor's runners (None for a backend that does not say). runners: how many
    the backend made.
    """

    def __init__(self, name: str) -> None:
        original = get_backend(name)
        self._compile = original.compile
        self.backend: Backend = dataclasses.replace(original, compile=self._watched)
        self.graphs = 0
        self.breaks: list[str] = []
        self.runners = 0
        self.kernels: int | None = None
        self.operators: int | None = None
        register(self, f"benchmarks-{id(self)}")

    def _watched(self, graph: Any, spec: Any) -> Callable[[list[Any]], Any]:
        runner: Callable[[list[Any]], Any] = resolve(self._compile)(graph, spec)
        self.runners += 1
        artifact = getattr(runner, "artifact", None)
        if artifact is not None:
            self.kernels = (self.kernels or 0) + artifact.kernels
            self.operators = (self.operators or 0) + len(artifact.externs)
        return runner

    @hookimpl
    def tracer_graph_captured(self) -> None:
        """Counts it."""
        self.graphs += 1

    @hookimpl
    def tracer_graph_break(self, location: str, reason: str) -> None:
        """Keeps where and why."""
        self.breaks.append(f"{location}: {reason}")
