"""Loops of 1,000 iterations with a graph break in them.

In: nothing. Out: a table of microseconds an iteration for eager, torch.compile and us with backends
that run the captured operators as they are, the graphs of ours, and the ratios. What always holds:
the three run in one process, in turns; the results are compared first; a figure is the median of
several rounds.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.grid import Grid

ITERATIONS, ROUNDS = 1000, 7


def branch(x: Any, w: Any, n: int) -> Any:
    """A branch on a tensor's value."""
    hits = 0
    for _ in range(n):
        x = (x @ w + 0.1).tanh()
        if x.sum().item() > 1e9:
            hits += 1
    return x, hits


def counter(x: Any, w: Any, n: int) -> Any:
    """The loop's variable is used in the graph; now and then a value is taken out of it."""
    log = []
    for i in range(n):
        x = (x @ w + i * 1e-4).tanh()
        if i % 100 == 0:
            log.append(x.sum().item())
    return x, log


def shows(x: Any, w: Any, n: int) -> Any:
    """A print in every iteration."""
    for _ in range(n):
        x = (x @ w + 0.1).tanh()
        print(end="")
    return x


def total(x: Any, w: Any, n: int) -> Any:
    """A Python number is summed up."""
    found = 0.0
    for _ in range(n):
        x = (x @ w + 0.1).tanh()
        found += x[0, 0].item()
    return x, found


LOOPS: dict[str, Callable[..., Any]] = {
    "branch": branch,
    "counter": counter,
    "shows": shows,
    "total": total,
}
SIZES = (8, 64, 128, 256)


def measure(name: str, size: int) -> dict[str, Any]:
    """Medians in microseconds an iteration, and the number of graphs of ours."""
    import torch

    import tracer_core
    from tracer_core.testing import CaptureCounter

    torch.manual_seed(0)
    torch.set_num_threads(1)
    args = torch.randn(size, size), torch.randn(size, size) / size**0.5, ITERATIONS
    loop = LOOPS[name]
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), CaptureCounter() as counted:
        functions = {
            "eager": loop, "torch": torch.compile(loop, backend="eager"),
            "ours": tracer_core.compile(loop, backend="eager"),
        }  # fmt: skip
        expected = loop(*args)
        for function in functions.values():
            for _ in range(2):
                torch.testing.assert_close(function(*args), expected, rtol=1e-4, atol=1e-4)
        seconds: dict[str, list[float]] = {kind: [] for kind in functions}
        for _ in range(ROUNDS):
            for kind, function in functions.items():
                start = time.perf_counter()
                function(*args)
                seconds[kind].append(time.perf_counter() - start)
    medians = {kind: statistics.median(all_) / ITERATIONS * 1e6 for kind, all_ in seconds.items()}
    return {"microseconds": medians, "graphs": len(counted.graphs)}


def _line(row: dict[str, Any]) -> list[str]:
    found = row["microseconds"]
    shown = [f"{found[kind]:.1f}" for kind in ("eager", "torch", "ours")]
    return [
        *shown,
        *(f"{found[kind] / found['eager']:.2f}" for kind in ("torch", "ours")),
        str(row["graphs"]),
    ]


GRID = Grid(
    "loops",
    __doc__,
    {"loops": list(LOOPS), "sizes": [str(size) for size in SIZES]},
    lambda name, size: measure(name, int(size)),
    ("eager µs", "torch.compile µs", "ours µs", "torch/eager", "ours/eager", "graphs"),
    _line,
)


if __name__ == "__main__":
    sys.exit(GRID.main())
