"""What the calls of one compiled function share."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tracer_core.background.compilation import Compilation
from tracer_core.debug import crossed_limits, recompiles
from tracer_core.debug.logs import logger
from tracer_core.debug.stages import forget_history
from tracer_core.errors import TracerError
from tracer_core.execution.call import StartKey, name_of
from tracer_core.execution.capture.result import Answers
from tracer_core.execution.entry.entries import Entries
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.entry.regions import Regions
from tracer_core.execution.store.persistent_cache import PersistentCache
from tracer_core.execution.tiers.eager_or_compiled import Tiering, Ways
from tracer_core.execution.tiers.recompile_limit import RecompileLimit
from tracer_core.options import CompileConfig


@dataclass(slots=True, weakref_slot=True, eq=False)
class Runtime:
    """Mutable. It holds nothing that holds it, so that it dies with the compiled function."""

    function: Callable[..., Any]
    config: CompileConfig
    #: Returns the compiled function while it lives.
    owner: Callable[[], Any]
    regions: Regions
    entries: Entries
    persistent_cache: PersistentCache
    tiering: Tiering
    limit: RecompileLimit
    #: What was or is compiled in the background.
    compilations: list[Compilation]
    #: Returns how calls of a form can be made.
    ways: Callable[[Runtime, StartKey], Ways]
    #: Why the function runs in eager mode from now on, or None.
    skipped: str | None = None
    #: Why it, or parts of it, run in eager mode; `note_eager` adds to it.
    abandoned: list[str] = field(default_factory=list)
    #: Code that is not inlined -> the kind of the graph break where it is called.
    eager_codes: dict[types.CodeType, str] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    #: Whether it has a ``while`` loop with a large body that ends when data say so. A trace that goes
    #: on at branches on tensors would follow the loop for nothing, wherever it begins.
    has_long_loop: bool = False
    #: How many calls reached a graph break.
    n_broken: int = 0
    #: Starts compilations in the background after the call that captured their graphs.
    to_start: list[Callable[[], None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the function in messages."""
        return name_of(self.function, self.config, self.owner())

    def use(self, config: CompileConfig) -> None:
        """Captures by another configuration from now on."""
        self.config = self.tiering.config = self.limit.config = config

    def forget(self) -> None:
        """Drops every cache entry, and what was learned from captures."""
        for compilation in self.compilations:
            compilation.drop()
        self.compilations.clear()
        self.entries.clear()
        self.persistent_cache.forget()
        self.regions.clear()
        self.tiering.forget()
        self.limit.forget()
        for noted in (crossed_limits.forget, recompiles.forget, forget_history):
            noted(self.owner())
        self.skipped, self.eager_codes, self.answers = None, {}, Answers()
        self.has_long_loop = False
        self.abandoned.clear()

    def compare_again(self) -> None:
        """Begins a new comparison with eager mode, because something was captured or compiled."""
        self.tiering.compare_again(functools.partial(self.ways, self))

    def may_speculate(self) -> bool:
        """Returns whether branches on tensors may be assumed to go some way: not where the user
        chose how the function is compiled, nor where a graph that takes the wrong way could not be
        left (an index out of bounds on CUDA, a collective)."""
        return self.tiering.may_run_eagerly() and self.tiering.may_measure()

    def note_eager(self, reason: str, *, always: bool = False) -> None:
        """Notes why the function, or a part of it, runs in eager mode. always: as a whole, from now
        on."""
        if reason not in self.abandoned:
            self.abandoned.append(reason)
        if always:
            self.skipped = reason

    def skip(self, reason: str) -> None:
        """Runs the whole function in eager mode from now on."""
        logger().warning("%s runs eagerly: %s", self.name, reason)
        self.regions.clear()
        self.note_eager(reason, always=True)

    def give_up(self, cache: GuardedCache, reason: str, cause: BaseException | None = None) -> None:
        """Captures nothing more in a region. Raises TracerError where eager mode is an error."""
        if self.config.must_compile:
            raise self.not_captured(reason) from cause
        cache.limit_hit = True
        self.note_eager(reason)
        logger().warning("%s runs eagerly: %s", self.name, reason)

    def not_captured(self, reason: str) -> TracerError:
        """Returns the error of a function that cannot be captured."""
        asked = "fullgraph=True, but " if self.config.fullgraph else ""
        return TracerError(f"{asked}{self.name} cannot be captured: {reason}")
