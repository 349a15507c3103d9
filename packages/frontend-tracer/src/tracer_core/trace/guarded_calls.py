"""Guards on the results of functions: state that is guarded by calling the function again.

The source of a result is the call. Each later call of the program repeats the query once, before
the graph runs; a different result is a guard failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracer_core.guards.source import SourceKind

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


def applied(tracer: Tracer, function: Callable[[Any], Any], obj: Any, varies: bool = False) -> Any:
    """Returns function(obj) for an object from before the trace; guards the result. varies: a number
    may become a symbol."""
    provenance = tracer.provenance
    base = provenance.source_of(obj)
    assert base is not None
    held = provenance.constant(function)
    assert held.kind is SourceKind.CONST, function  # the program itself cannot reach it
    source = provenance.sources.make(base, SourceKind.APPLIED, held.key)
    read = provenance.read_varying if varies else provenance.read
    return read(function(obj), source)


def _address(obj: Any) -> int:
    return id(obj)


def identity(tracer: Tracer, obj: Any) -> int:
    """Returns the id of an object from before the trace, guarded; keeps no reference to it."""
    return int(applied(tracer, _address, obj))


def query(tracer: Tracer, function: Any) -> Any:
    """Calls a function without arguments whose result is a setting, and guards the result."""
    source = tracer.provenance.sources.make(tracer.provenance.constant(function), SourceKind.CALLED)
    return tracer.provenance.read(function(), source)


def query_call(tracer: Tracer, function: Callable[..., Any], *args: Any) -> Any:
    """Returns function(*args) for constants; guards the result."""
    call = functools.partial(function, *args) if args else function
    return query(tracer, tracer.native_calls.queries.setdefault((function, args), call))
