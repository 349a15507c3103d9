"""Branches on symbolic conditions that decide nothing.

In ``if not done and n > most: warn()`` a call with ``done`` goes on where one without it and with a
small ``n`` does. Where the trace has seen the rest of such a condition lead to the same place, and
nothing but reads and comparisons in between, ``done`` has no guard: the entry serves both. So the last
iteration of a loop, which finds out that it is the last one, needs no entry of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tracer_core.bytecode.frame import Frame
from tracer_core.trace.component import Component

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class UndecidedBranches(Component):
    """The branch of a trace whose condition is not guarded yet. Mutable. condition: None without
    one."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.condition: torch.SymBool | None = None
        self._frame: Frame | None = None
        self._begin = self._end = self._target = self._step = 0

    def outcome(self, condition: torch.SymBool) -> bool | None:
        """Returns how a branch goes whose condition may need no guard; None where it needs one."""
        frame, hint = self.tracer.frames[-1], condition.node.hint
        code, at = frame.code, frame.last
        at += code.names[at] == "TO_BOOL"
        end = code.conditions.get(at)
        if hint is None or end is None or self.condition is not None:
            return None
        if hint == ("IF_TRUE" in code.names[at]):  # it jumps
            return None
        self.condition, self._frame, self._step = condition, frame, self.tracer.steps
        self._begin, self._end, self._target = at, end, code.args[at]
        return bool(hint)

    def look(self) -> None:
        """Called before an instruction: the condition's last part has led to the same place, or goes
        on, or else the branch is guarded."""
        frame, tracer = self.tracer.frames[-1], self.tracer
        self._step += 1
        alone = frame is self._frame and tracer.steps == self._step  # no code of the program ran
        if alone and frame.ip == self._target:
            self.condition = self._frame = None
        elif not alone or not self._begin <= frame.ip < self._end:
            self.decide()

    def decide(self) -> None:
        """Guards the branch, if there is one."""
        condition, self.condition, self._frame = self.condition, None, None
        if condition is not None:
            bool(condition)
