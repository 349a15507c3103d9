"""The process that `benchmarks.auto` starts for each way of a row.

In: arguments ``<model> <way>``: ``eager``, a label of `CANDIDATES`, or ``auto:<label>,<label>``;
then the questions of a `Way`, and ``"choices"`` (waits until auto has decided). Out: an answer to
each, as `processes.answers` sends it. What always holds: auto's candidates are compiled as those
alone.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import models, processes
from benchmarks.way import Way

#: label: (backend, its options). OpenVINO computes float32 in bfloat16 unless it is told not to.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "inductor": ("inductor", {}),
    "inductor+freeze": ("inductor", {"freeze": True}),
    "onnxrt": ("onnxrt", {}),
    "onnxrt+freeze": ("onnxrt", {"freeze": True}),
    "openvino": ("openvino", {"config": {"INFERENCE_PRECISION_HINT": "f32"}}),
    "tvm": ("tvm", {}),
}

#: Seconds for a graph: more than the default, so that no row ends for lack of time.
BUDGET = 240.0


def compiled(function: Any, way: str) -> Any:
    """The function, compiled in a way."""
    import tracer_core

    if way == "eager":
        return function
    kind, _, labels = way.partition(":")
    if kind != "auto":
        backend, options = CANDIDATES[way]
        return tracer_core.compile(function, backend=backend, options=options or None)
    candidates = [CANDIDATES[label] for label in labels.split(",")]
    return tracer_core.compile(
        function, backend=candidates, options={"budget": BUDGET, "remember": False}
    )


class Tried(Way):
    """One way of one model; of auto's, also what it found."""

    def _choices(self, seconds: float) -> dict[str, Any]:
        """Seconds a call while candidates compile, the tables when all is decided, and after how
        long that was. Raises TimeoutError where that takes longer than `seconds`: a time that is
        measured then would be anybody's."""
        start = time.perf_counter()
        meanwhile = []
        while not all(choice.decided for choice in self._function.choices()):
            if time.perf_counter() - start > seconds:
                undecided = "\n".join(str(choice) for choice in self._function.choices())
                raise TimeoutError(f"auto had not decided after {seconds:.0f} s:\n{undecided}")
            begun = time.perf_counter()
            self._program.call(self._function)
            meanwhile.append(time.perf_counter() - begun)
            time.sleep(1.0)  # a program that is called now and then
        choices = self._function.choices()
        if not choices:
            raise RuntimeError("auto saw no graph")
        return {
            "decided_after": time.perf_counter() - start,
            "meanwhile": sorted(meanwhile),
            "tables": [str(choice) for choice in choices],
            "choices": [choice.to_json() for choice in choices],
        }


if __name__ == "__main__":
    name, way = sys.argv[1:]
    processes.answers(Tried(models.MODELS[name], lambda function: compiled(function, way)).tell)
