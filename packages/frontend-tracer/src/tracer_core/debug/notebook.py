"""How notebooks show what the functions of `tracer_core` return: its text, escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence


class NotebookText:
    """Mixin of objects whose ``str()`` begins with a summary line: Jupyter shows that line in bold."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return as_html(str(self))


def as_html(text: str) -> str:
    """Returns HTML that shows a text as it is, its first line in bold."""
    first, _, rest = html.escape(text).partition("\n")
    return f'<pre style="line-height: 1.3"><b>{first}</b>\n{rest}</pre>'


def count(number: int, noun: str) -> str:
    """Returns ``"1 graph"`` or ``"2 graphs"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def screen(lines: Sequence[str], rest: str, most: int = 24) -> list[str]:
    """Returns the first lines, at most as many as a screen has; `rest` says how to see the others."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[:most], f"... {count(len(lines) - most, 'more line')}: {rest}"]
