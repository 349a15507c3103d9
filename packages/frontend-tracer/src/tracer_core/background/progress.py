"""`Progress`: what users see of the graphs that are compiled in the background."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer_core.background.compilation import COMPILING, UNDER_WAY, Compilation


@dataclass(frozen=True, slots=True)
class GraphProgress:
    """One graph that is or was compiled in the background. state: ``"waiting"``, ``"compiling"``,
    ``"compiled"``, ``"failed"`` or ``"dropped"``. stage: that began last. seconds: since the call
    that captured it, until its end. detail: the state in words."""

    function: str
    graph: str
    state: str
    stage: str
    seconds: float
    detail: str


class Progress(tuple[GraphProgress, ...]):
    """What is or was compiled in the background; prints one line a graph."""

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        """Whether every graph has ended."""
        return self.n_done == len(self)

    @property
    def n_done(self) -> int:
        """How many graphs have ended."""
        return sum(one.state not in UNDER_WAY for one in self)

    def __repr__(self) -> str:
        lines = [
            f"{one.function:<32} {one.graph:<10} {one.seconds:7.1f} s  {one.detail}"
            + (f" ({one.stage})" if one.state == COMPILING and one.stage else "")
            for one in self
        ]
        return "\n".join(lines) or "nothing was compiled in the background"


def progress_of(every: Sequence[Compilation]) -> Progress:
    """Returns how far these are."""
    return Progress(
        GraphProgress(one.function, one.graph, one.state, one.stage, one.seconds, one.text)
        for one in every
    )
