"""The rows as a page and as JSON.

In: rows, the backend they are of, a note. Out: Markdown for docs/conformance/, and what `json.dump`
takes. What always holds: the page has nothing that the rows and the versions do not say; the same
rows give the same page.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tracer_core.contract.backend import Backend
from tracer_core.testing.conformance.cases import ANY
from tracer_core.testing.conformance.row import BAD, STATUSES, Row, dtype_name

#: Statuses in a cell of the matrix, the worst last.
ORDER = ("ok", "partly", "eager", "wrong", "error")


def as_json(backend: Backend, rows: Sequence[Row], note: str = "") -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "backend": backend.name, "torch": torch.__version__, "python": platform.python_version(),
        "note": note, "counts": dict(Counter(row.status for row in rows)),
        "rows": [row.to_json() for row in rows],
    }  # fmt: skip


def markdown(backend: Backend, rows: Sequence[Row], note: str = "") -> str:
    """The support matrix as a page."""
    counts = Counter(row.status for row in rows)
    summary = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    command = f"python -m tracer_core.testing.conformance --backend {backend.name} --page ..."
    lines = [
        f"# Conformance of `{backend.name}`",
        "",
        f"{backend.description}. Made by `{command}`",
        f"with {_versions()}. {note}".rstrip(),
        "",
        f"{len(rows)} rows: {summary}.",
        "",
        *(f"- **{status}**: {meaning}" for status, meaning in STATUSES.items() if counts[status]),
        "",
        *_matrix([row for row in rows if row.dtype is not None]),
        *_programs([row for row in rows if row.dtype is None]),
        *_reasons(rows),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _versions() -> str:
    python = ".".join(platform.python_version_tuple()[:2])
    return f"torch {torch.__version__.partition('+')[0]} on Python {python}"


def _matrix(rows: Sequence[Row]) -> Iterator[str]:
    dtypes = [dtype for dtype in ANY if any(row.dtype is dtype for row in rows)]
    for area in dict.fromkeys(row.area for row in rows):
        heads = " | ".join(map(dtype_name, dtypes))
        yield from (f"## {area.capitalize()}", "", f"| case | {heads} |")
        yield "|---|" + "---|" * len(dtypes)
        for name in dict.fromkeys(row.case for row in rows if row.area == area):
            mine = [row for row in rows if row.case == name and row.area == area]
            cells = (_cell([row for row in mine if row.dtype is dtype]) for dtype in dtypes)
            yield f"| {name} | {' | '.join(cells)} |"
        yield ""


def _cell(rows: Sequence[Row]) -> str:
    """``ok``, or how many of the shapes are what."""
    counts = Counter(row.status for row in rows)
    if len(counts) <= 1:
        return next(iter(counts), "")
    return ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])


def _programs(rows: Sequence[Row]) -> Iterator[str]:
    if rows:
        yield from ("## Programs", "", "| area | program | result |", "|---|---|---|")
        for row in sorted(rows, key=lambda row: row.area):
            detail = f": {_line(row.detail)}" if row.detail else ""
            yield f"| {row.area} | {row.case} | {row.status}{detail} |"
        yield ""


def _unsupported(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(operator, reason) of each row that did not run whole; ("", reason) where no operator is
    named.
    """
    for row in rows:
        if row.dtype is not None and row.status in ("partly", "eager"):
            yield from row.refused or [("", row.detail)]


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    operators: dict[str, list[str]] = {}
    for operator, reason in _unsupported(rows):
        names = operators.setdefault(_line(re.sub(r"[\w.]*_\d+\b|node_\w+", "...", reason)), [])
        if operator and operator not in names:
            names.append(operator)
    if operators:
        yield from ("## What runs eagerly, and why", "")
        for reason, names in sorted(operators.items(), key=lambda item: (-len(item[1]), item[0])):
            listed = ", ".join(f"`{name}`" for name in sorted(names))
            yield f"- {reason}: {listed or 'whole graphs'}"
        yield ""
    broken = [row for row in rows if row.dtype is not None and row.status in BAD]
    if broken:
        yield from ("## Wrong", "")
        for row in broken:
            what = f"{row.case} {str(row.dtype).removeprefix('torch.')} {row.shape}"
            yield f"- {what}: {row.status}: {_line(row.detail)}"


def _line(text: str) -> str:
    return text.partition("\n")[0].replace("|", "\\|")[:160]
