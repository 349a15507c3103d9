"""`Compilation`: one graph that is compiled while the captured graph runs eagerly.

In: a function that compiles and puts the result in place. Out: its state, for whoever waits or
looks. A compilation ends as ``compiled``, ``failed`` (`error` says why, and who started it what
follows) or ``dropped`` (nobody needs it any more).
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable

from tracer_core.background import worker
from tracer_core.background.gil_yielding import yielding_gil
from tracer_core.debug import stages


class CompilationState(enum.StrEnum):
    """How far a compilation is. Each row has `detail`: what that means for the program's calls."""

    WAITING = "waiting", "waits for a thread; the captured graph runs eagerly meanwhile"
    COMPILING = "compiling", "compiles; the captured graph runs eagerly meanwhile"
    COMPILED = "compiled", "compiled in the background; serves since"
    #: `Compilation.error` has the reason.
    FAILED = "failed", "failed"
    DROPPED = "dropped", "no longer needed"

    detail: str

    def __new__(cls, text: str, detail: str) -> CompilationState:
        """Makes a member whose text is its name for users."""
        state = str.__new__(cls, text)
        state._value_, state.detail = text, detail
        return state

    @property
    def has_ended(self) -> bool:
        """Whether the compilation is over."""
        return self not in (CompilationState.WAITING, CompilationState.COMPILING)


class Dropped(BaseException):
    """Ends a compilation that nobody needs any more, at its next stage."""


class SettingsChanged(Exception):
    """A setting of torch that a graph depends on changed while it was compiled."""


class Compilation:
    """Mutable. function: the name of the compiled function. graph: ``graph_0``. state: one of
    the words above. stage: the stage that began last. error: of a failed one."""

    def __init__(self, function: str, graph: str) -> None:
        self.function, self.graph = function, graph
        self.state, self.stage = CompilationState.WAITING, ""
        self.error: BaseException | None = None
        self._dropped = False
        self._since, self._end = time.perf_counter(), 0.0
        self._done = threading.Event()

    def start(
        self, work: Callable[[], Callable[[], None]], failed: Callable[[BaseException], bool]
    ) -> None:
        """Has a background thread do `work`, and then what it returns, which puts the result in
        place. Both may raise `Dropped`; `failed` gets any other error, and returns whether it is
        final: else something else will be compiled."""

        def run() -> None:
            end = CompilationState.DROPPED
            try:
                self._check("")
                self.state = CompilationState.COMPILING
                with stages.interruptible(self._check), yielding_gil():
                    put = work()
                put()
                end = CompilationState.COMPILED
            except Dropped:
                pass
            except BaseException as error:  # whatever a backend raises: no caller would get it
                if not worker.is_ending() and failed(error):  # the end stops the compilers
                    self.error, end = error, CompilationState.FAILED
            finally:
                self._finish(end)

        worker.submit(run)

    def drop(self) -> None:
        """Ends it at its next stage; whoever waits for it no longer does."""
        self._dropped = True
        if not self._done.is_set():
            self._finish(CompilationState.DROPPED)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the end; returns False on timeout."""
        return self._done.wait(seconds)

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._done.is_set()

    @property
    def seconds(self) -> float:
        """The seconds since it was asked for, until its end."""
        return (self._end if self.is_done else time.perf_counter()) - self._since

    @property
    def text(self) -> str:
        """The state in words."""
        failed = self.state is CompilationState.FAILED
        reason = f": {type(self.error).__name__}: {self.error}" if failed else ""
        return f"{self.state.detail}{reason}"

    def _check(self, stage: str) -> None:
        self.stage = stage
        if self._dropped or worker.is_ending():
            raise Dropped

    def _finish(self, state: CompilationState) -> None:
        if not self._done.is_set():
            self.state, self._end = state, time.perf_counter()
            self._done.set()
