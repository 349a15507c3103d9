"""Results of a capture, and how it ends without one: the cache entry's function, its text and the metadata about it."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.execution.entry.resume_function import ResumeFunction
from tracer_core.graph_breaks import BREAKS
from tracer_core.guards.own_reference import object_of

if TYPE_CHECKING:
    from tracer_core.aot.compiled_graph import CompiledGraph
    from tracer_core.execution.tiers.background_entry import Pending
    from tracer_core.guards.explanation import Failure
    from tracer_core.guards.source import Source


class UserError(Exception):
    """The program itself raised while it was traced; the real run will raise it again."""


class Abandoned(Exception):
    """Nothing can be captured here, so the activation runs in eager mode. The text says why."""


@dataclass(slots=True)
class Answers:
    """What is_compiling() answers in captures of one function. Mutable. as_eager: answer False,
    because the program fails under True and does not fail in eager mode."""

    as_eager: bool = False


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """One graph break. kind: a key of BREAKS. location: the user's line. library: the line of a
    library that breaks, below the user's; "" where the user's line does."""

    kind: str
    reason: str
    location: str
    library: str = ""

    @property
    def hint(self) -> str:
        return BREAKS[self.kind].hint

    @property
    def place(self) -> str:
        """The user's line, and below it the library's."""
        return f"{self.location} (in {self.library})" if self.library else self.location


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Captured:
    """One cache entry. cache entry(S): its generated function. text: its source. graph: the
    torch-level graph, None if no operator ran. break_: the break that ends the entry, None if it
    returns. shapes and numbers: shapes of input tensors and values of symbolic scalars by source
    expression. name: of its graph or code region. speculated: what the graph assumes of tensors.
    pending: what compiles the graph while it runs eagerly; None where it is compiled."""

    entry_function: Callable[[Any], Any]
    text: str
    graph: torch.fx.GraphModule | None
    op_count: int
    break_: BreakRecord | None
    shapes: dict[str, tuple[int, ...]]
    numbers: dict[str, int | float]
    name: str
    constants: dict[str, Any]
    runner: CompiledGraph | None
    check_first: Failure
    portable: Portable
    speculated: tuple[str, ...] = ()
    pending: Pending | None = None

    def breaks_inside(self, code: types.CodeType) -> bool:
        """Returns whether the entry ends with a graph break in a call of this code."""
        resume_functions = (
            constant for constant in self.constants.values() if isinstance(constant, ResumeFunction)
        )
        return any(part.code is code for function in resume_functions for part in function.layouts)

    @property
    def guards(self) -> tuple[str, ...]:
        """Returns the guards of the entry as expressions."""
        return self.check_first.texts()


@dataclass(frozen=True, slots=True)
class Portable:
    """What storing a cache entry needs beside its text.

    roots: of each guard cache, the state items whose identity keys it. paths: constant's name -> a source that
    reaches the constant without the state. interpreted: the functions from before the trace whose
    bytecode was followed. path_constants: the constants that sources in `paths` use as indices.
    Both are `held`. exact: names of constants that must be these very objects, though others are
    equal. settings: of torch, under which kernels were chosen. unguarded: why the entry
    hangs on what neither guards nor digests of code tell.
    """

    roots: Sequence[Sequence[int]]
    paths: dict[str, Source]
    interpreted: tuple[Any, ...]
    path_constants: tuple[Any, ...]
    exact: frozenset[str]
    settings: dict[str, str]
    unguarded: tuple[str, ...] = ()

    @property
    def functions(self) -> list[types.FunctionType]:
        """Returns the functions whose bytecode was followed and that are still alive."""
        return [item for item in object_of(self.interpreted) if item is not None]
