"""The process that `benchmarks.steady` starts for each compiler of a row.

In: arguments ``<model> <compiler> <folder>``; then questions: ``"truth"`` (writes the result in float64 into the folder),
``"first"``, ``"turn"`` with a `Plan`'s fields. Out: an answer to each, as `processes.answers` sends it. What always
holds: the model's weights and inputs are those of every other process of the row; nothing of another compiler
is imported.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.timing import Plan, turn

_TRUTH, _EAGER = "truth.pt", "eager.pt"


class Row:
    """One compiler of one model (mutable: `first` makes what `turn` calls)."""

    def __init__(self, model: models.Model, compiler: str, folder: Path) -> None:
        self._model, self._compiler, self._folder = model, compiler, folder
        self._program = model.program()
        self._function: Any = None

    def tell(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answers one question."""
        with self._model.mode():
            answer: dict[str, Any] = getattr(self, f"_{question.pop('do')}")(**question)
        return answer

    def _truth(self) -> dict[str, Any]:
        import torch

        from tracer_core.testing.compare import tensors_in

        program = models.in_float64(self._program)
        torch.save(list(tensors_in(program.call())), self._folder / _TRUTH)
        torch.save(list(tensors_in(self._program.call())), self._folder / _EAGER)
        return {}

    def _first(self) -> dict[str, Any]:
        """Seconds of compile() and the first call, error against float64 and beside eager's own."""
        import torch

        from tracer_core.testing.compare import error_ratio, relative_error, tensors_in

        before = _memory("VmRSS")
        start = time.perf_counter()
        self._function = compilers.compiler(self._compiler)(self._program.function)
        result = self._program.call(self._function)
        seconds = time.perf_counter() - start
        self._program.call(self._function)
        found = list(tensors_in(result))
        truth, eager = (torch.load(self._folder / name) for name in (_TRUTH, _EAGER))
        return {
            "first_call": seconds,
            "error": relative_error(truth, found),
            "error_ratio": error_ratio(truth, eager, found),
            "memory_before": before,
        }

    def _turn(self, **plan: Any) -> dict[str, Any]:
        """Seconds a call over one turn, and the most memory that was resident in it."""
        _reset_peak()
        seconds = turn(self._function, self._program.args, self._program.kwargs, Plan(**plan))
        return {"seconds": seconds, "peak": _memory("VmHWM")}


def _memory(name: str) -> int:
    """Bytes: ``VmRSS`` (resident now) or ``VmHWM`` (the most since `_reset_peak`)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    """Linux: writing 5 there sets VmHWM to VmRSS (proc(5))."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    processes.answers(Row(models.MODELS[sys.argv[1]], sys.argv[2], Path(sys.argv[3])).tell)
