"""The base of the tracer's components."""

from __future__ import annotations

from tracer_core.trace.interfaces import Tracing


class Component:
    """A part of the tracer with one job. Mutable."""

    def __init__(self, tracer: Tracing) -> None:
        self.tracer, self.effects, self.recorder = tracer, tracer.effects, tracer.recorder
        self.provenance, self.sources = tracer.provenance, tracer.provenance.sources
