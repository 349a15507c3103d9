"""`Progress`: what users see of the graphs that are compiled in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer_core.background.compilation import Compilation, CompilationState
from tracer_core.debug.notebook import NotebookText


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """One graph that is or was compiled in the background."""

    #: The qualified name of the compiled function.
    function: str
    #: The name of the graph.
    graph: str
    #: How far it is.
    state: CompilationState
    #: The stage that began last.
    stage: str
    #: Seconds since the call that captured it, until its end.
    seconds: float
    #: The state in words.
    detail: str


class Progress(NotebookText, tuple[GraphProgress, ...]):
    """The graphs that are or were compiled in the background; prints one line per graph."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        """Whether no graph is still waiting or being compiled."""
        return self.n_done == len(self)

    @property
    def n_done(self) -> int:
        """The number of graphs that are not waiting or being compiled."""
        return sum(item.state.has_ended for item in self)

    def __repr__(self) -> str:
        lines = [
            f"{item.function:<32} {item.graph:<10} {item.seconds:7.1f} s  {item.detail}"
            + (
                f" ({item.stage})"
                if item.state is CompilationState.COMPILING and item.stage
                else ""
            )
            for item in self
        ]
        return "\n".join(lines) or "nothing was compiled in the background"


def progress_of(every: Sequence[Compilation]) -> Progress:
    """Returns the progress of these compilations."""
    return Progress(
        GraphProgress(item.function, item.graph, item.state, item.stage, item.seconds, item.text)
        for item in every
    )
