"""Loops of 1,000 iterations with a graph break in them.

In: nothing. Out: a table of microseconds an iteration for eager, torch.compile and us with backends that run the
captured operators as they are, the graphs of ours, and the ratios. What always holds: the three run in one
process, in turns; the results are compared first; a figure is the median of several rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import processes
from benchmarks.results import Store
from benchmarks.tables import table

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


LOOPS: dict[str, Callable[..., Any]] = {"branch": branch, "counter": counter, "shows": shows, "total": total}
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="benchmarks.loops", description=__doc__)
    parser.add_argument("--loops", nargs="+", default=list(LOOPS), choices=list(LOOPS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--in-this-process", nargs=2, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.in_this_process:
        name, size = chosen.in_this_process
        processes.answer(measure(name, int(size)))
        return 0
    store = Store("loops", again=chosen.again)
    lines, failed = [], False
    for name in chosen.loops:
        for size in chosen.sizes:
            child = ["--in-this-process", name, str(size)]
            row, _ = store.row(
                f"{name} {size}", lambda child=child: processes.fresh("benchmarks.loops", child, limit=600)
            )
            if "failed" in row:
                print(f"{name} {size} failed: {row['failed']}")
                failed = True
                continue
            found = row["microseconds"]
            lines.append(
                [name, str(size), *(f"{found[kind]:.1f}" for kind in ("eager", "torch", "ours")),
                 f"{found['torch'] / found['eager']:.2f}", f"{found['ours'] / found['eager']:.2f}", str(row["graphs"])]
            )  # fmt: skip
    header = [
        "loop",
        "size",
        "eager µs",
        "torch.compile µs",
        "ours µs",
        "torch/eager",
        "ours/eager",
        "graphs",
    ]
    print(table(header, lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
