"""The base of the tracer's components."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class Component:
    """A part of the tracer with one job. Mutable."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.effects, self.recorder = tracer, tracer.effects, tracer.recorder
        self.provenance, self.sources = tracer.provenance, tracer.provenance.sources
