"""What a capture gives: a variant's function, its text and what is known of it."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.fx_capture.graph_breaks import BREAKS
from tracer_core.guards.explanation import Failure
from tracer_core.guards.source import Source


@dataclass(frozen=True, slots=True)
class BreakRecord:
    """One graph break. kind: a key of BREAKS; reason; location: of the user's line; hint."""

    kind: str
    reason: str
    location: str

    @property
    def hint(self) -> str:
        return BREAKS[self.kind].hint


@dataclass(frozen=True, slots=True)
class Captured:
    """One variant. attempt(S): its generated function. text: its source. graph: the torch-level
    graph, None if no operator ran. break_: where it ends, None if it returns. shapes: of its inputs
    by source expression; numbers: likewise. name: of its graph or segment."""

    attempt: Callable[[Any], Any]
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

    @property
    def guards(self) -> tuple[str, ...]:
        """What the variant relies on, as expressions."""
        return self.check_first.texts()


@dataclass(frozen=True, slots=True)
class Portable:
    """What storing a variant needs beside its text.

    roots: state items whose identity keys its stamps. paths: constant's name -> a source that
    reaches it without the state. interpreted: the functions whose bytecode was followed.
    path_constants: what the constants in `paths` index.
    """

    roots: tuple[int, ...]
    paths: dict[str, Source]
    interpreted: tuple[types.FunctionType, ...]
    path_constants: tuple[Any, ...]
