"""Indented text, line by line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager


class CodeWriter:
    """Collects lines at a current indentation, and gives out names. Mutable."""

    def __init__(self, indent: str = "    ") -> None:
        self.lines: list[str] = []
        self._indent, self._depth = indent, 0
        self._names = itertools.count()

    def line(self, text: str = "") -> None:
        self.lines.append(self._indent * self._depth + text if text else "")

    def fresh(self, prefix: str) -> str:
        """A name that the text does not have yet."""
        return f"{prefix}{next(self._names)}"

    def raw(self, text: str) -> None:
        """Text at the left margin (pragmas, whole functions)."""
        self.lines.append(text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head {`` ... ``}``"""
        self.line(f"{head} {{" if head else "{")
        with self.indented():
            yield
        self.line("}")

    @contextmanager
    def block_python(self, head: str) -> Iterator[None]:
        """``head`` and an indented body."""
        self.line(head)
        with self.indented():
            yield

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
