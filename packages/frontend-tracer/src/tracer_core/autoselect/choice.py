"""The result of a schedule selection: a row for each candidate, and the choice, printable as a
table and as JSON.

Every candidate has a row, whose detail says what went wrong with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The possible results of a candidate.
STATUSES = ("chosen", "slower", "wrong", "failed", "refused", "not tried")


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one candidate.

    name: the candidate, with the options that it was given. status: one of `STATUSES`.
    compile_seconds. ms: time of one call (of forward and backward where gradients are needed).
    eager_ms: eager's, timed in turns with it. error: relative, against eager. detail: why it is
    wrong, failed, was rejected or not tried, or which part of it runs eagerly.
    """

    name: str
    status: str
    compile_seconds: float | None = None
    ms: float | None = None
    eager_ms: float | None = None
    error: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The state of a selection.

    graph: its name. chosen: the name of the row that serves it now. decided: the choice is final.
    remembered: the choice was loaded from disk.
    """

    graph: str
    chosen: str
    rows: tuple[Row, ...]
    decided: bool = True
    remembered: bool = False

    def row(self, name: str) -> Row:
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


def from_json(graph: str, data: Any) -> Choice:
    """Parses what `Choice.to_json` returned. Raises ValueError for anything else."""
    if not isinstance(data, Mapping) or not isinstance(data.get("rows"), list):
        raise ValueError("not a table of candidates")
    try:
        rows = tuple(Row(**row) for row in data["rows"])
    except TypeError as error:
        raise ValueError(str(error)) from error
    choice = Choice(graph, data.get("chosen", ""), rows, remembered=True)
    if [row.name for row in rows if row.status == "chosen"] != [choice.chosen]:
        raise ValueError("no single row is the chosen one")
    return choice


def _ratio(row: Row) -> float | None:
    return row.eager_ms / row.ms if row.ms and row.eager_ms else None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
