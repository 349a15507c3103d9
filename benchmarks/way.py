"""One way to run one model, in a process of its own that answers questions about it.

In: a model and what compiles its function; then questions: ``{"do": "first"}``, ``{"do": "turn",
...}`` with a `Plan`'s fields, and those of subclasses (a method ``_name`` answers ``{"do":
"name"}``). Out: an answer to each, which JSON can say. What always holds: the model's weights and
inputs are those of every other process of a row; a turn's peak is of that turn alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import models
from benchmarks.timing import Plan, turn


class Way:
    """Mutable: `_first` makes what `_turn` calls."""

    def __init__(self, model: models.Model, compiled: Callable[[Any], Any]) -> None:
        self._model, self._compiled = model, compiled
        self._program = model.program()
        self._function: Any = None

    def tell(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answers one question."""
        with self._model.mode():
            answer: dict[str, Any] = getattr(self, f"_{question.pop('do')}")(**question)
        return answer

    def _first(self) -> dict[str, Any]:
        """Seconds of compile() and the first call."""
        return {"first_call": self._compile_and_call()[0]}

    def _compile_and_call(self) -> tuple[float, Any]:
        """The seconds and the result."""
        start = time.perf_counter()
        self._function = self._compiled(self._program.function)
        result = self._program.call(self._function)
        return time.perf_counter() - start, result

    def _turn(self, **plan: Any) -> dict[str, Any]:
        """Seconds a call over one turn, and the most memory that was resident in it."""
        _reset_peak()
        seconds = turn(self._function, self._program.args, self._program.kwargs, Plan(**plan))
        return {"seconds": seconds, "peak": memory("VmHWM")}


def memory(name: str) -> int:
    """Bytes: ``VmRSS`` (resident now) or ``VmHWM`` (the most since a turn began)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    """Linux: writing 5 there sets VmHWM to VmRSS (proc(5))."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
