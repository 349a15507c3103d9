"""Text tables and the means in them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    printed = [
        "  ".join(
            _pad(cell, width, i) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    printed.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in printed)


def _pad(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column == 0 else cell.rjust(width)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers; NaN of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def milliseconds(seconds: float) -> str:
    """Three significant digits or more: ``0.0123``, ``1.23``, ``123.4``."""
    value = seconds * 1e3
    digits = 4 if value < 0.1 else 3 if value < 1 else 2 if value < 100 else 1
    return f"{value:.{digits}f}"
