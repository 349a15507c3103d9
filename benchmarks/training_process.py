"""One row of `benchmarks.training`, in a process of its own.

In: model, precision (``float32`` or ``bfloat16``: autocast), form (``model``: the module is
compiled; ``step``: the whole step, zero_grad to optimizer, is) and backend. Out: graphs, errors and
seconds.

What always holds: eager and compiled are both judged by the same program in float64. A gradient's
error is that of all gradients of a step as one vector, relative to its length, at parameters that
are the same for all three; losses are those of three separate trainings.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import processes
from benchmarks.training_models import TRAINED

STEPS = 20
#: Steps after which all gradients are compared, at eager's parameters.
COMPARED = (0, 5, 10, 19)


def main(arguments: list[str]) -> None:
    name, precision, form, backend = arguments
    processes.answer(measure(name, precision, form, backend))


def measure(name: str, precision: str, form: str, backend: str) -> dict[str, Any]:
    """One row."""
    trained = TRAINED[name]
    module, batches = trained.make()
    import tracer_core
    from tracer_core.dispatch import compile_graph
    from tracer_core.testing import CaptureCounter

    fallbacks: list[str] = []
    compile_graph.report = lambda fallback: fallbacks.append(f"{fallback.kind}: {fallback.reason}")
    truth, twin = copy.deepcopy(module).double(), copy.deepcopy(module)
    with CaptureCounter() as counter:
        start = time.perf_counter()
        runs = {
            "eager": Run(module, trained, precision),
            "compiled": Run(
                twin, trained, precision, form, lambda f: tracer_core.compile(f, backend=backend)
            ),
            "truth": Run(truth, trained, "float64"),
        }
        losses: dict[str, list[float]] = {key: [] for key in runs}
        gradients: list[tuple[float, float]] = []
        first = 0.0
        for number in range(STEPS):
            batch = batches[number % len(batches)]
            for key, run in runs.items():
                start = time.perf_counter()
                losses[key].append(run.step(batch))
                if key == "compiled" and number == 0:
                    first = time.perf_counter() - start
            if form == "model" and number in COMPARED:
                gradients.append(compare_gradients(runs, module, batch))
    facts = {
        "graphs": len(counter.graphs),
        "breaks": [list(one) for one in counter.breaks],
        "recompiles": [reason for _, reason in counter.recompiles],
        "fallbacks": fallbacks,
        "first": first,
        "loss_error": [worst(losses[key], losses["truth"]) for key in ("eager", "compiled")],
        "loss_difference": worst(losses["compiled"], losses["eager"]),
        "gradient_errors": gradients,
        "losses": losses["compiled"][:: STEPS - 1],
    }
    return facts | speed(runs, batches[0])


class Run:
    """One training (mutable)."""

    def __init__(
        self,
        module: Any,
        trained: Any,
        precision: str,
        form: str = "",
        compile_: Callable[[Any], Any] | None = None,
    ) -> None:
        import torch

        self.module, self.loss_of, self.precision = module, trained.loss, precision
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
        self.function = compile_(module) if compile_ is not None and form == "model" else module
        self.run = compile_(self._step) if compile_ is not None and form == "step" else self._step

    def step(self, batch: tuple[Any, Any]) -> float:
        """The loss of one step."""
        return float(self.run(*self.cast(batch)).detach())

    def cast(self, batch: tuple[Any, Any]) -> list[Any]:
        if self.precision != "float64":
            return list(batch)
        return [value.double() if value.is_floating_point() else value for value in batch]

    def forward(self, inputs: Any, target: Any) -> Any:
        import torch

        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            return self.loss_of(self.function(inputs), target)

    def _step(self, inputs: Any, target: Any) -> Any:
        self.optimizer.zero_grad(True)
        loss = self.forward(inputs, target)
        loss.backward()
        self.optimizer.step()
        return loss

    def gradients(self, state: dict[str, Any], batch: tuple[Any, Any]) -> list[Any]:
        """Of all parameters, at the parameters and buffers of `state`; the run itself goes on where
        it was.
        """
        import torch

        before = copy.deepcopy(self.module.state_dict())
        self.module.load_state_dict(state)
        self.module.zero_grad()
        self.forward(*self.cast(batch)).backward()
        found = [p.grad.double() for p in self.module.parameters() if p.grad is not None]
        self.module.load_state_dict(before)
        self.module.zero_grad()
        assert found and torch.is_grad_enabled()
        return found


def compare_gradients(
    runs: dict[str, Run], module: Any, batch: tuple[Any, Any]
) -> tuple[float, float]:
    """(eager's, compiled's) relative error against float64."""
    state = copy.deepcopy(module.state_dict())
    found = {key: run.gradients(state, batch) for key, run in runs.items()}
    truth = found["truth"]
    length = sum(float(t.square().sum()) for t in truth) ** 0.5
    error = {
        key: sum(float((g - t).square().sum()) for g, t in zip(found[key], truth, strict=True))
        ** 0.5
        / length
        for key in ("eager", "compiled")
    }
    return error["eager"], error["compiled"]


def worst(values: list[float], truth: list[float]) -> float:
    """The greatest relative difference."""
    return max(abs(one - other) / abs(other) for one, other in zip(values, truth, strict=True))


def speed(runs: dict[str, Run], batch: tuple[Any, Any]) -> dict[str, Any]:
    """Seconds of a step, eager beside compiled: the median of alternating rounds."""
    from benchmarks.timing import Plan, alternate

    functions = {key: runs[key].run for key in ("eager", "compiled")}
    rounds = alternate(functions, batch, {}, Plan(rounds=5, seconds=0.2, least=2))
    return {"seconds": rounds}


if __name__ == "__main__":
    main(sys.argv[1:])
