"""The cache entries of one compiled function: captured here, or by earlier processes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.execution.capture.result import BreakRecord, Captured
from tracer_core.execution.store.reader import LoadedEntry

if TYPE_CHECKING:
    from tracer_core.guards.explanation import Failed

use_own_builtins(globals())


class Entries:
    """Mutable."""

    __slots__ = ("captured", "loaded")

    def __init__(self) -> None:
        self.captured: list[Captured] = []
        #: Entries that another process captured.
        self.loaded: list[LoadedEntry] = []

    @property
    def breaks(self) -> list[BreakRecord]:
        """The graph breaks of all entries."""
        ends = [
            *(entry.break_ for entry in self.loaded),
            *(entry.break_ for entry in self.captured),
        ]
        return [end for end in ends if end is not None]

    def clear(self) -> None:
        """Drops all entries."""
        self.captured.clear()
        self.loaded.clear()

    def replace(self, old: Captured, new: Captured) -> None:
        """Puts an entry in the place of another one."""
        self.captured[:] = [new if entry is old else entry for entry in self.captured]

    def failed(self, cache_entry: Any, state: Any) -> Failed | None:
        """Returns the guard that a state fails; None if the entry was loaded or no guard fails."""
        for entry in reversed(self.captured):
            if entry.entry_function is cache_entry:
                return entry.check_first.failed(state)
        return None

    def summary(self, name: str) -> str:
        """Returns one line: the numbers of graphs and breaks, and the most frequent break."""
        n_graphs = sum(entry.graph is not None for entry in self.captured)
        places = Counter((end.place, end.reason) for end in self.breaks)
        text = f"{name}: {n_graphs} graph{'s' * (n_graphs != 1)}"
        text += f", {len(places)} graph break{'s' * (len(places) != 1)}"
        if places:
            ((place, reason), _), *_ = places.most_common(1)
            text += f"; {'the worst' if len(places) > 1 else 'it is'} at {place}: {reason}"
        return text
