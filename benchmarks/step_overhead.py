"""What a compiler costs around a training step that does almost nothing.

In: nothing. Out: microseconds of a step (zero_grad, forward, loss, backward, SGD) of a small MLP:
eager, ours with the backends ``eager`` and ``aten_eager`` (module compiled, and the whole step),
torch.compile with ``aot_eager``. What always holds: all run in one process and take turns, round by
round; ratios are of medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import processes
from benchmarks.results import Store
from benchmarks.tables import table

#: name -> (what is compiled, how).
WAYS: dict[str, tuple[str, str, str]] = {
    "eager": ("", "", ""),
    "tracer-core, eager": ("model", "ours", "eager"),
    "tracer-core, eager, whole step": ("step", "ours", "eager"),
    "tracer-core, aten_eager": ("model", "ours", "aten_eager"),
    "tracer-core, aten_eager, whole step": ("step", "ours", "aten_eager"),
    "torch.compile, eager": ("model", "torch", "eager"),
    "torch.compile, aot_eager": ("model", "torch", "aot_eager"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures unless it is there already, and prints."""
    parser = argparse.ArgumentParser(prog="benchmarks.step_overhead", description=__doc__)
    parser.add_argument("--again", action="store_true", help="measure again")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.measure:
        processes.answer(measure())
        return 0
    store = Store("step_overhead", again=chosen.again)
    if store.again or not store.rows:
        for name, seconds in processes.fresh(
            "benchmarks.step_overhead", ["--measure"], limit=900
        ).items():
            store.put(name, {"seconds": seconds})
    base = statistics.median(store.rows["eager"]["seconds"])
    rows = []
    for name in WAYS:
        median = statistics.median(store.rows[name]["seconds"])
        rows.append([name, f"{median * 1e6:.1f}", f"{median / base:.2f}"])
    print(table(["a step of a small MLP", "µs", "over eager"], rows))
    return 0


def measure() -> dict[str, list[float]]:
    """Seconds of a step by name, one number a round."""
    import torch

    torch.set_num_threads(1)
    steps = {name: _step(*way) for name, way in WAYS.items()}
    for step in steps.values():
        for _ in range(100):
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(60):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(40):
                step()
            found[name].append((time.perf_counter() - start) / 40)
    return found


def _step(form: str, compiler: str, backend: str) -> Callable[[], Any]:
    import torch
    from torch import nn

    import tracer_core

    def compiled(function: Any) -> Any:
        if compiler == "ours":
            return tracer_core.compile(function, backend=backend)
        return torch.compile(function, backend=backend)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    forward: Any = compiled(model) if form == "model" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 16)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        forward(x).square().mean().backward()
        optimizer.step()

    run = compiled(step) if form == "step" else step
    return lambda: run(x)


if __name__ == "__main__":
    sys.exit(main())
