"""Runs a graph break in eager mode: the breaking instruction, and the plain instructions after it.

In: the layouts and values of an activation at a break. Out: the value of the whole activation, or
an `Exit` (the resume point where capture goes on) and the state there. The breaking instruction
runs exactly once. After it only instructions run that belong in no graph: moves, loops over
iterators that are already alive, arithmetic and branches on plain numbers and text. So the body of
a loop with a break in it is one code region, and a number that came out of a tensor can decide a
branch without a guard.

A resume function that is taken often is compiled to Python source
(`resume_hot_codegen.ResumeWriter`); opcodes without a row there are left to `RealMachine`, which has
the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tracer_core.bytecode.code import decode
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import (
    FrameLayout,
    dead_variables,
    flatten,
    frames_of,
    without,
)
from tracer_core.contract.branch_prediction import Outcomes
from tracer_core.debug.profiling import break_row
from tracer_core.guards.object_lifetime import must_outlive_variable

if TYPE_CHECKING:
    import torch

    from tracer_core.trace.eager_interpreter import RealMachine

use_own_builtins(globals())

_COMPILE_AFTER = 3  # runs of a resume function before its source is written


class Exit:
    """The resume point where a resume function leaves the activation. Mutable. region: the guarded
    cache of the code region there, once known."""

    __slots__ = ("layouts", "region")

    def __init__(self, layouts: tuple[FrameLayout, ...]) -> None:
        self.layouts = layouts
        self.region: Any = None  # a `guarded_cache.GuardedCache`


class Continuation:
    """An activation at a break. Mutable. resume function: consumes `values`, the flat state of its
    frames."""

    __slots__ = ("resume_function", "values")

    def __init__(self, resume_function: ResumeFunction, values: tuple[Any, ...]) -> None:
        self.resume_function, self.values = resume_function, values

    def taken(self) -> Any:
        """Returns the only value, which this holds no more: an exception's frames hold this."""
        (value,), self.values = self.values, ()
        return value


class ResumeFunction:
    """Runs one graph break. Mutable: it learns its exits. layouts: of the frames at the break.
    raises: the exception that the trace saw the breaking instruction raise, and that leaves the
    function. follows_graph: whether the code region before it runs a graph. stored: another process
    ran it with the values of the trace."""

    def __init__(
        self,
        layouts: tuple[FrameLayout, ...],
        raises: str = "",
        follows_graph: bool = True,
        stored: bool = False,
    ) -> None:
        self.layouts, self.raises, self.follows_graph = layouts, raises, follows_graph
        self.run: Callable[[Continuation], tuple[Exit | None, Any]] = self._counted
        #: How the branch at the break went, where it is one and follows a tensor.
        self.outcomes = Outcomes()
        self._predicting: Callable[[Any, bool], Any] | None = None
        self._exits: dict[Any, Exit] = {}
        self._runs = int(stored)

    def row(self) -> str:
        """Returns the name of the break in a profile."""
        code, ip = self.layouts[-1].code, self.layouts[-1].ip
        return break_row(f"{code.co_filename}:{decode(code).lines[ip] or code.co_firstlineno}")

    def predict(
        self, values: tuple[Any, ...], outcome: bool
    ) -> tuple[tuple[Exit, tuple[Any, ...]], torch.Tensor] | None:
        """Returns the exit of an outcome of the branch at the break and the state there, and the tensor
        that decides; None where the break is no branch on a tensor that the host waits for. values: at
        the break."""
        if self._predicting is None:
            self._predicting = self._written(predicts=True) or _predicts_nothing
        return self._predicting(values, outcome)

    def _written(self, predicts: bool) -> Callable[..., Any] | None:
        from tracer_core.execution.entry.resume_hot_codegen import ResumeWriter  # heavy: few breaks

        named = (self.interpret, self.failed, self.outcomes.note)
        return ResumeWriter(self.layouts, self.exit, self.dropping, named, predicts).function()

    def _counted(self, continuation: Continuation) -> tuple[Exit | None, Any]:
        self._runs += 1
        if self._runs >= _COMPILE_AFTER:
            self.run = (None if self.raises else self._written(predicts=False)) or self.interpret
        return self.interpret(continuation)

    def interpret(self, continuation: Continuation) -> tuple[Exit | None, Any]:
        """Returns (None, value) when the activation returned, else (exit, state there). Only the
        frames hold the activation's values meanwhile, so that they die as in eager."""
        machine = interpreter()
        frames, continuation.values = frames_of(self.layouts, continuation.values), ()
        returned, value = machine.step(frames)
        if self.raises and not machine.raised and self._runs <= 1:
            # The first run has the values of the trace. Later ones need not raise: the cause of the
            # exception is not guarded.
            raise NotRaised(self.raises, frames, value)
        return self._outcome(machine, frames, returned, value)

    def failed(self, error: BaseException, layouts: Any, values: Any) -> tuple[Exit | None, Any]:
        """Continues after `error` was raised by the instruction that `layouts` stands at."""
        machine = interpreter()
        machine.frames = frames = frames_of(layouts, values)
        frames[-1].last = frames[-1].ip
        frames[-1].ip += 1
        machine.unwind(error, 0)
        return self._outcome(machine, frames, False, None)

    def _outcome(
        self, machine: RealMachine, frames: list[Frame], returned: bool, value: Any
    ) -> tuple[Exit | None, Any]:
        if not returned:
            returned, value = machine.realize()
        if returned:
            return None, value
        layouts, state = flatten(frames)
        return self.exit(layouts), tuple(state)

    def dropping(
        self, layouts: tuple[FrameLayout, ...]
    ) -> Callable[[tuple[Any, ...]], tuple[Exit, Any]]:
        """Returns the function that, of the state of an activation with these layouts, returns the
        exit and the state there, without the values of dead variables."""
        dead = dead_variables(layouts)
        known: dict[tuple[bool, ...], tuple[Exit, Callable[[Any], tuple[Any, ...]]]] = {}

        def drop(values: tuple[Any, ...]) -> tuple[Exit, Any]:
            # not by a loop over the frames: which places are dead is the same in each call
            ended = tuple([not must_outlive_variable(values[place]) for place in dead])
            leaving = known.get(ended)
            if leaving is None:
                dropped = set(compress(dead, ended))
                places = [place for place in range(len(values)) if place not in dropped]
                select: Callable[[Any], Any] = itemgetter(*places)
                if len(places) == 1:  # of the function
                    select = itemgetter(slice(1))
                leaving = known[ended] = self.exit(without(layouts, dropped)), select
            exit, select = leaving
            return exit, select(values)

        return drop

    def exit(self, layouts: tuple[FrameLayout, ...]) -> Exit:
        """Returns the exit at these layouts; always the same object."""
        result = self._exits.get(layouts)
        if result is None:
            result = self._exits[layouts] = Exit(layouts)
        return result


def _predicts_nothing(values: Any, outcome: bool) -> None:
    return None


def interpreter() -> RealMachine:
    """Returns an interpreter that does what CPython does."""
    from tracer_core.trace.eager_interpreter import RealMachine  # heavy: only breaks need it

    return RealMachine()


#: In place of a resume function: the graph raised (the only value) before any side effect.
GRAPH_RAISED: Any = type("GraphRaised", (), {"__repr__": lambda self: "GRAPH_RAISED"})()

#: In place of a resume function: a saved-tensor hook of the program raised (the only value) in the
#: graph.
HOOK_RAISED: Any = type("HookRaised", (), {"__repr__": lambda self: "HOOK_RAISED"})()


class NotRaised(Exception):
    """An instruction that raised while it was traced did not raise when it ran. frames: the
    activation after it; empty if it returned `value`."""

    def __init__(self, what: str, frames: list[Frame], value: Any) -> None:
        super().__init__(f"{what}, seen in the trace, was not raised")
        self.frames, self.value = frames, value
