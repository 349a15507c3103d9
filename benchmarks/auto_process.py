"""The process that `benchmarks.auto` starts for each way of a row.

In: arguments ``<model> <way>``: ``eager``, a label of `CANDIDATES`, or ``auto:<label>,<label>``; then questions: ``"first"``,
``"choices"`` (waits until auto has decided), ``"turn"`` with a `Plan`'s fields. Out: an answer to each. What always holds:
the model's weights and inputs are those of every other process of the row; auto's candidates are compiled as those alone.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks import models, processes
from benchmarks.timing import Plan, turn

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
    return tracer_core.compile(function, backend=candidates, options={"budget": BUDGET, "remember": False})


class Way:
    """One way of one model (mutable: `first` makes what `turn` calls)."""

    def __init__(self, model: models.Model, way: str) -> None:
        self._model, self._way = model, way
        self._program = model.program()
        self._function: Any = None

    def tell(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answers one question."""
        with self._model.mode():
            answer: dict[str, Any] = getattr(self, f"_{question.pop('do')}")(**question)
        return answer

    def _first(self) -> dict[str, Any]:
        start = time.perf_counter()
        self._function = compiled(self._program.function, self._way)
        self._program.call(self._function)
        return {"first_call": time.perf_counter() - start}

    def _choices(self, seconds: float) -> dict[str, Any]:
        """Milliseconds a call while candidates compile, the tables when all is decided, and after how long that was."""
        start = time.perf_counter()
        meanwhile = []
        while not all(choice.decided for choice in self._function.choices()):
            if time.perf_counter() - start > seconds:
                break
            begun = time.perf_counter()
            self._program.call(self._function)
            meanwhile.append(time.perf_counter() - begun)
            time.sleep(1.0)  # a program that is called now and then
        choices = self._function.choices()
        return {
            "decided_after": time.perf_counter() - start,
            "meanwhile": sorted(meanwhile),
            "decided": all(choice.decided for choice in choices),
            "tables": [str(choice) for choice in choices],
            "choices": [choice.to_json() for choice in choices],
        }

    def _turn(self, **plan: Any) -> dict[str, Any]:
        return {"seconds": turn(self._function, self._program.args, self._program.kwargs, Plan(**plan))}


if __name__ == "__main__":
    processes.answers(Way(models.MODELS[sys.argv[1]], sys.argv[2]).tell)
