"""The process that `benchmarks.steady` starts for each compiler of a row.

In: arguments ``<model> <compiler> <folder>``; then the questions of a `Way`, and ``"truth"``
(writes the result in float64 into the folder). Out: an answer to each, as `processes.answers` sends
it; to ``"first"`` also errors. What always holds: nothing of another compiler is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import compilers, models, processes
from benchmarks.way import Way, memory

_TRUTH, _EAGER = "truth.pt", "eager.pt"


class Row(Way):
    """One compiler of one model, judged against float64."""

    def __init__(self, model: models.Model, compiler: str, folder: Path) -> None:
        super().__init__(
            model, lambda function: compilers.compiler(compiler)(function)
        )  # which imports it, in time
        self._folder = folder

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

        before = memory("VmRSS")
        seconds, result = self._compile_and_call()
        self._program.call(self._function)
        found = list(tensors_in(result))
        truth, eager = (torch.load(self._folder / name) for name in (_TRUTH, _EAGER))
        return {
            "first_call": seconds,
            "error": relative_error(truth, found),
            "error_ratio": error_ratio(truth, eager, found),
            "memory_before": before,
        }


if __name__ == "__main__":
    processes.answers(Row(models.MODELS[sys.argv[1]], sys.argv[2], Path(sys.argv[3])).tell)
