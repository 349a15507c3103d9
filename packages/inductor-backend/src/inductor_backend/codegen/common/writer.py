"""Collects indented lines of generated text, and sanitizes the user's file and function names for
it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext


def comment_text(text: str) -> str:
    """Returns text for a comment of C++ or Python or inside a string. Characters that could end the
    comment or string, or continue the line, become ``_``."""
    return "".join(c if c.isprintable() and c not in "\\'\"?" else "_" for c in text)


def literal(text: str) -> str:
    """Returns a Python string literal, readable where the text allows it."""
    return repr(text) if "'''" in text or text.endswith(("\\", "'")) else f"r'''\n{text}'''"


class CodeWriter:
    """Collects lines at a current indentation, and generates names."""

    def __init__(self, indent: str = "    ") -> None:
        self.lines: list[str] = []
        self._indent, self._depth = indent, 0
        self._names = itertools.count()

    def line(self, text: str = "") -> None:
        self.lines.append(self._indent * self._depth + text if text else "")

    def fresh(self, prefix: str) -> str:
        """Returns a new name."""
        return f"{prefix}{next(self._names)}"

    def raw(self, text: str) -> None:
        """Adds text at the left margin (pragmas, whole functions)."""
        self.lines.append(text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Writes ``head {`` ... ``}``."""
        self.line(f"{head} {{" if head else "{")
        with self.indented():
            yield
        self.line("}")

    @contextmanager
    def unless(self, condition: str) -> Iterator[None]:
        """Writes a block that is skipped where the condition holds; "": no block."""
        with self.block(f"if (!({condition}))") if condition else nullcontext():
            yield

    @contextmanager
    def block_python(self, head: str) -> Iterator[None]:
        """Writes ``head`` and an indented body."""
        self.line(head)
        with self.indented():
            yield

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
