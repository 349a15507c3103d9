"""The result of a backend selection, printable as a table and as JSON.

Every candidate has a row, whose detail says what went wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tracer_core.debug.notebook import NotebookText, count

#: How a candidate did.
Status = Literal["chosen", "slower", "wrong", "failed", "refused", "not tried"]
STATUSES = get_args(Status)


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """The result of one candidate."""

    #: The candidate, with the options that it was given.
    name: str
    #: How the candidate did.
    status: Status
    #: Seconds of its compile.
    compile_seconds: float | None = None
    #: Milliseconds of one call (of forward and backward where gradients are needed).
    ms: float | None = None
    #: Milliseconds of an eager call, timed in alternating rounds with it.
    eager_ms: float | None = None
    #: Relative error against eager.
    error: float | None = None
    #: Why it is wrong, failed, was refused or not tried, or which part of it runs eagerly.
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BackendChoice(NotebookText):
    """The state of a selection."""

    #: The name of the graph.
    graph: str
    #: The name of the row that serves it now.
    chosen: str
    #: One per candidate.
    rows: tuple[CandidateRow, ...]
    #: Whether the choice is final.
    decided: bool = True
    #: Whether the choice was loaded from disk.
    remembered: bool = False

    def row(self, name: str) -> CandidateRow:
        """Returns the row of a candidate. Raises KeyError."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        state = "remembered" if self.remembered else "decided" if self.decided else "still trying"
        lines = [f"{self.graph}: {self.chosen} ({state})"]
        width = max(24, *(len(row.name) for row in self.rows))
        cells: list[tuple[str, ...]] = [
            ("candidate", "status", "ms", "x eager", "compile s", "error", "")
        ]
        for row in self.rows:
            numbers = map(_number, (row.ms, _ratio(row), row.compile_seconds))
            error = "" if row.error is None else f"{row.error:.0e}"
            cells.append((row.name, row.status, *numbers, error, row.detail.partition("\n")[0]))
        for name, status, ms, ratio, seconds, error, detail in cells:
            line = (
                f"  {name:{width}} {status:9} {ms:>8} {ratio:>8} {seconds:>10} {error:>7}  {detail}"
            )
            lines.append(line.rstrip())
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form for the disk."""
        return {"chosen": self.chosen, "rows": [dataclasses.asdict(row) for row in self.rows]}


class BackendChoices(NotebookText, tuple[BackendChoice, ...]):
    """The choices of a compiled object, one for each graph; prints as tables."""

    def __repr__(self) -> str:
        trying = sum(not choice.decided for choice in self)
        head = count(len(self), "graph")
        more = f", {trying} still tried: choices(wait=60) waits for them" if trying else ""
        return "\n".join([head + more, *map(str, self)])


def from_json(graph: str, data: Any) -> BackendChoice:
    """Parses what `BackendChoice.to_json` returned. Raises ValueError for anything else."""
    if not isinstance(data, Mapping) or not isinstance(data.get("rows"), list):
        raise ValueError("not a table of candidates")
    try:
        rows = tuple(CandidateRow(**row) for row in data["rows"])
    except TypeError as error:
        raise ValueError(str(error)) from error
    choice = BackendChoice(graph, data.get("chosen", ""), rows, remembered=True)
    if [row.name for row in rows if row.status == "chosen"] != [choice.chosen]:
        raise ValueError("no single row is the chosen one")
    return choice


def _ratio(row: CandidateRow) -> float | None:
    return row.eager_ms / row.ms if row.ms and row.eager_ms else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
