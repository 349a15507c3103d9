"""Collects the kernels of a graph and the runs that call them, in any target language.

Operator calls separate runs; a run is one call from Python. Kernels that differ only in their
arguments exist once. Each kernel's text has the user's lines in comments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from inductor_backend.codegen.common.writer import comment_text
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import LoopProgram, Origin

#: Placeholder of the name in a kernel's text.
NAME = "@NAME@"

#: Most letters of a kernel's label.
LABEL = 48

#: Most comments of a kernel (the user's lines that it computes).
COMMENTS = 8


def kernel_label(origins: Iterable[Origin]) -> str:
    """Returns the operators that a kernel computes, for its name."""
    return "_".join(dict.fromkeys(origin.op for origin in origins))[:LABEL] or "empty"


@dataclass(slots=True)
class Run:
    """One call from Python."""

    name: str
    #: Storages, the arena, or (Triton) Python texts of ints.
    arguments: list[str] = field(default_factory=list)
    #: Sizes after them.
    symbols: list[str] = field(default_factory=list)
    #: Its calls, in order.
    lines: list[str] = field(default_factory=list)
    #: The names of their kernels.
    called: list[str] = field(default_factory=list)
    #: Their rows in a profile.
    rows: list[str] = field(default_factory=list)
    #: Whether one of them uses the arena.
    in_arena: bool = False
    #: Whether one of them may report an error; no kernel runs after one that did.
    fails: bool = False
    #: The places of the arguments.
    places: dict[str, int] = field(default_factory=dict)

    def slot(self, argument: str) -> int:
        """Returns the position of an argument, which is added if new."""
        place = self.places.setdefault(argument, len(self.arguments))
        if place == len(self.arguments):
            self.arguments.append(argument)
        return place


class KernelModule(ABC):
    """Collects kernels and runs. kernels: deduplication key -> (name, comments)."""

    comment: str

    def __init__(
        self, program: LoopProgram, offset: Callable[[str], Expr | None], prefix: str = ""
    ) -> None:
        """offset: returns a storage's byte offset in the arena, None for a separate tensor. prefix: of
        the names of runs."""
        self.program, self.offset, self.prefix = program, offset, prefix
        self.kernels: dict[Any, tuple[str, list[str]]] = {}
        self.runs: list[Run] = []

    def open_run(self) -> Run:
        run = Run(f"{self.prefix}run_{len(self.runs)}")
        self.runs.append(run)
        return run

    def call(self, run: Run, kernel: Any, comments: Sequence[str]) -> None:
        """Adds a call of the kernel to the run. comments: the user's lines that it computes."""
        key = self.key(kernel)
        if key not in self.kernels:
            self.kernels[key] = (self.new_name(kernel), [])
        name, seen = self.kernels[key]
        seen += [comment for comment in comments if comment not in seen]
        run.called.append(name)
        self.write_call(run, kernel, name)

    def text_of(self, text: str, name: str, comments: Sequence[str]) -> str:
        """Returns a kernel's text with its name and comments."""
        lines = "".join(
            f"{self.comment} {comment_text(comment)}\n" for comment in comments[:COMMENTS]
        )
        return lines + text.replace(NAME, name)

    @abstractmethod
    def key(self, kernel: Any) -> Any:
        """Returns the deduplication key of a kernel."""

    @abstractmethod
    def new_name(self, kernel: Any) -> str:
        """Returns the name of a kernel that is new in the module."""

    @abstractmethod
    def write_call(self, run: Run, kernel: Any, name: str) -> None:
        """Adds the line that calls the kernel."""

    @abstractmethod
    def sources(self) -> list[str]:
        """Returns the texts to compile."""
