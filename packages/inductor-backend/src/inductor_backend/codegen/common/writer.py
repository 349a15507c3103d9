"""Indented text, line by line; and text from outside (names of the user's files and functions) made
safe to write in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager


def plain(text: str) -> str:
    """Text for a comment of C++ or Python or inside a string. What could end it, or go on in the
    next line, becomes ``_``: a file or function may have any name."""
    return "".join(one if one.isprintable() and one not in "\\'\"?" else "_" for one in text)


def literal(text: str) -> str:
    """A Python string, readable in the module where the text allows it."""
    return repr(text) if "'''" in text or text.endswith(("\\", "'")) else f"r'''\n{text}'''"


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
