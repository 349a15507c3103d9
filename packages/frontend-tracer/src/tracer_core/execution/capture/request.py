"""What a trace may do, and how a failed trace changes that for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tracer_core.errors import BackendError, Location
from tracer_core.execution.capture.result import Abandoned
from tracer_core.execution.entry.trace_graph import SymbolsUnsupported
from tracer_core.graph_breaks import Restart, Retry
from tracer_core.reconstruct.values import CannotRebuild


class Fails(BaseException):
    """The program fails in this trace after it read an answer of is_compiling(). where: the line
    that read the answer. reason: how the program fails."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)
        self.where, self.reason = where, reason


#: What ends a trace so that another one begins.
RETRIED = (Fails, Restart, CannotRebuild, SymbolsUnsupported)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options of one trace of a code region."""

    #: What is_compiling() answers.
    is_compiling: bool = True
    #: Whether a program that fails may need the other answer.
    doubts_is_compiling: bool = True
    #: How the program fails where is_compiling() says True: the line, and the reason.
    failure: tuple[str, str] = ("", "")
    #: Whether unbacked SymInts stand for sizes that depend on data.
    unbacked_symints: bool = False
    #: Whether symbolic scalars stand for random numbers.
    random_numbers: bool = False
    #: Whether the graph may assert something of a tensor's values.
    assertions: bool = True
    #: Whether branches on tensors may be assumed to go some way.
    speculates: bool = True
    #: Whether subscripts by numbers that depend on data may be copies.
    copies_elements: bool = True
    #: What the backend cannot take as symbols: "sizes", "numbers"; refused data.
    refused: frozenset[str] = frozenset()
    #: Whether the sizes that the loop around the region changes are known.
    knows_growth: bool = False
    #: Instruction -> the break before it: kind, reason, location.
    breaks: Mapping[int, tuple[str, str, Location]] = field(default_factory=dict)
    #: Types whose values cannot be made again: the trace breaks where the first one appears.
    unbuildable: frozenset[type] = frozenset()

    def after(self, error: Any) -> TraceOptions:
        """Returns the options of the next trace. error: what ended the last one, of `RETRIED`. Raises
        Abandoned or BackendError where another trace would end alike."""
        if isinstance(error, Retry):
            return replace(self, **error.changes)
        if isinstance(error, Restart):
            forced = (error.kind, error.reason, error.location)
            return replace(self, breaks={**self.breaks, error.step: forced})
        if isinstance(error, Fails):
            if not self.is_compiling:  # it fails in eager too
                return replace(self, is_compiling=True, doubts_is_compiling=False, breaks={})
            failure = (error.where, error.reason)  # the other answer leads to other steps
            return replace(self, is_compiling=False, failure=failure, breaks={})
        if isinstance(error, CannotRebuild):
            if error.kind in self.unbuildable:
                raise Abandoned(f"a value cannot be made again: {error}") from error
            return replace(self, unbuildable=self.unbuildable | {error.kind})
        assert isinstance(error, SymbolsUnsupported)
        what = "sizes" if error.what in self.refused else error.what
        if what in self.refused:  # without symbols it fails too
            raise cast(BackendError, error.__cause__) from None
        return replace(self, refused=self.refused | {what})
