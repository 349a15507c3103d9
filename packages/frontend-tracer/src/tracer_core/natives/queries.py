"""Values that a function of the outside gives: state that is guarded by asking again.

In: a function and what it is asked about. Out: its answer, whose source is the call itself. What
always holds: the same question is asked once on every later call, before the graph runs, and a
different answer is a guard miss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer_core.natives.tracing import Tracing


def applied(tracer: Tracing, function: Callable[[Any], Any], obj: Any) -> Any:
    """function(obj) of an object that existed before, asked again on every call."""
    provenance = tracer.provenance
    base = provenance.source_of(obj)
    assert base is not None
    held = provenance.constant(function)
    assert held.kind == "const", function  # one that the program itself does not reach
    source = provenance.sources.make(base, "applied", held.key)
    return provenance.read(function(obj), source)


def query(tracer: Tracing, function: Any) -> Any:
    """Calls a function without arguments whose result is a setting, and guards the result."""
    source = tracer.provenance.sources.make(tracer.provenance.constant(function), "called")
    return tracer.provenance.read(function(), source)
