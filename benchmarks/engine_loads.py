"""What onnxrt and tvm do with many batch sizes, large inputs and many threads.

``python -m benchmarks.engine_loads [--engines onnxrt tvm] [--again]``

In: nothing. Out: a table, and rows in ``results/engine_loads``, for each engine: how many sessions
(builds) the batch sizes 1 to 32 of resnet18 make; by how many megabytes memory rises while a
program reads 105 MB of inputs, and what a copy of them would take; calls a second of one compiled
model from one thread and from eight. What always holds: each row has a fresh process with empty
caches; every result is compared with eager's, and one that differs is an error.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import models, processes
from benchmarks.results import Store
from benchmarks.tables import table

#: engine: the stage of a compile in which the engine makes what it runs.
ENGINES = {"onnxrt": "onnxrt session", "tvm": "tvm build"}
THREADS, SECONDS = 8, 2.0


def batches(engine: str) -> dict[str, Any]:
    """Batch sizes 1 to 32 through one compiled resnet18."""
    import tracer_core
    from tracer_core.debug import stages

    program = models.MODELS["resnet18_64"].program()
    x = program.args[0]
    made: list[str] = []
    stop = stages.observe(lambda record: made.append(record.name))
    fast = tracer_core.compile(program.function, backend=engine)
    for size in (*range(2, 33), 1):
        given = x.expand(size, -1, -1, -1) * torch.linspace(0.5, 1.5, size).view(-1, 1, 1, 1)
        tracer_core.mark_dynamic(given, 0, min=1, max=32)
        torch.testing.assert_close(fast(given), program.function(given), rtol=1e-3, atol=1e-4)
    stop()
    return {"made_for_1_to_32": made.count(ENGINES[engine])}


def memory(engine: str) -> dict[str, Any]:
    """105 MB of inputs."""
    import tracer_core
    from tests.engines.running import peak_growth

    fast = tracer_core.compile(lambda x: x.sum(-1), backend=engine)
    x = torch.randn(1024, 25600)
    torch.testing.assert_close(fast(x), x.sum(-1), rtol=1e-3, atol=1e-2)
    return {
        "inputs_mb": x.nbytes / 1e6,
        "rise_mb": peak_growth(lambda: fast(x)),
        "copy_mb": peak_growth(x.clone),
    }


def threads(engine: str) -> dict[str, Any]:
    """Calls a second of one compiled model."""
    import tracer_core

    program = models.MODELS["resnet18_64"].program()
    fast = tracer_core.compile(program.function, backend=engine, options={"freeze": True})
    inputs = [program.args[0] * (1 + 0.1 * number) for number in range(THREADS)]
    expected = [program.function(x) for x in inputs]
    fast(inputs[0])
    wrong: list[int] = []

    def work(number: int, counts: list[int], end: float) -> None:
        with torch.no_grad():
            while time.perf_counter() < end:
                result = fast(inputs[number])
                counts[number] += 1
                if not torch.allclose(result, expected[number], rtol=1e-3, atol=1e-4):
                    wrong.append(number)

    def rate(n: int) -> float:
        counts, end = [0] * n, time.perf_counter() + SECONDS
        running = [threading.Thread(target=work, args=(number, counts, end)) for number in range(n)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        return sum(counts) / SECONDS

    found = {
        "calls_a_second_1": rate(1),
        f"calls_a_second_{THREADS}": rate(THREADS),
        "wrong": len(wrong),
    }
    if wrong:
        raise AssertionError(f"wrong results in threads {sorted(set(wrong))}")
    return found


PARTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "batches": batches,
    "memory": memory,
    "threads": threads,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.engine_loads", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=tuple(ENGINES))
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--row", nargs=2, metavar=("ENGINE", "PART"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.row:
        engine, part = given.row
        with torch.no_grad():
            processes.answer(PARTS[part](engine))
        return 0
    processes.warm_up_files()
    store = Store("engine_loads", again=given.again)
    lines, failed = [], False
    for engine in given.engines:
        for part in PARTS:
            child = ["--row", engine, part]
            row, _ = store.row(
                f"{engine} {part}",
                lambda child=child: processes.fresh("benchmarks.engine_loads", child, limit=300),  # type: ignore[misc]
            )
            failed |= "failed" in row
            facts = ", ".join(
                f"{k} {v:.4g}"
                for k, v in row.items()
                if isinstance(v, (int, float)) and k != "load"
            )
            lines.append([engine, part, row.get("failed", facts)])
            print(*lines[-1], flush=True)
    print(f"\n{table(['engine', 'load', 'found'], lines)}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
