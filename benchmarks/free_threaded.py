"""Calls a second of settled compiled code, from one thread and from eight at once.

In: nothing. Out: for each program and compiler a table of calls a second, of the calls that a
second of processor time pays for, and of the gain of eight threads over one. What always holds: a
row is a process of its own; rounds of one thread and of eight take turns in it; the best round of
each counts, and the gain is the median over rounds, because what a busy machine adds is no property
of the program; PyTorch itself uses one thread; the results of each thread are compared with
eager's. Meant for builds of CPython without the GIL (`free_threaded` in the rows says which build
it was).
"""

from __future__ import annotations

import statistics
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import compilers, harness
from benchmarks.models import SEED

THREADS = (1, 8)
ROUNDS, SECONDS = 9, 0.5


def _add() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    return lambda x, y: x + y, (torch.randn(10), torch.randn(10))


def _mlp() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64))
    return net.eval(), (torch.randn(8, 64),)


PROGRAMS = {"add": _add, "mlp": _mlp}


def measure(name: str, compiler: str) -> dict[str, Any]:
    """The figures of one program: calls a second by number of threads."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    program, args = PROGRAMS[name]()
    function = compilers.compiler(compiler)(program)
    with torch.no_grad():
        wanted = program(*args)
        for _ in range(5):
            function(*args)
    rates: dict[int, list[float]] = {n: [] for n in THREADS}
    busy: dict[int, list[float]] = {n: [] for n in THREADS}
    for _ in range(ROUNDS):
        for n in THREADS:
            began, used = time.perf_counter(), time.process_time()
            calls = _calls(n, function, args, wanted)
            rates[n].append(calls / (time.perf_counter() - began))
            busy[n].append(calls / (time.process_time() - used))
    item, many = THREADS
    return {
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "calls_a_second": {str(n): max(rates[n]) for n in THREADS},
        "calls_a_processor_second": {str(n): max(busy[n]) for n in THREADS},
        "gain": statistics.median(b / a for a, b in zip(rates[item], rates[many], strict=True)),
    }


def _calls(n: int, function: Callable[..., Any], args: tuple[Any, ...], wanted: Any) -> int:
    """Calls the function on n threads for `SECONDS`; returns how often it was called in all."""
    import torch

    counts, wrong = [0] * n, []
    begin = threading.Barrier(n)

    def work(number: int) -> None:
        count, result = 0, None
        with torch.no_grad():
            begin.wait()
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                for _ in range(20):
                    result = function(*args)
                count += 20
        counts[number] = count
        if not torch.allclose(result, wanted, atol=1e-5):  # type: ignore[arg-type]
            wrong.append(number)

    running = [threading.Thread(target=work, args=(number,)) for number in range(n)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if wrong or not all(counts):
        raise harness.Failed(f"wrong results on the threads {wrong}; calls: {counts}")
    return sum(counts)


def _line(row: dict[str, Any]) -> Sequence[str]:
    rates, busy = row["calls_a_second"], row["calls_a_processor_second"]
    return [
        "no GIL" if row["free_threaded"] else "GIL", f"{rates['1']:,.0f}", f"{rates['8']:,.0f}",
        f"{row['gain']:.2f}", f"{busy['1']:,.0f}", f"{busy['8']:,.0f}",
    ]  # fmt: skip


main = harness.Grid(
    "free_threaded",
    __doc__,
    {"programs": list(PROGRAMS), "compilers": ["eager", "ours:eager", "ours"]},
    measure,
    ("build", "calls/s, 1 thread", "8 threads", "gain", "calls/processor s, 1 thread", "8 threads"),
    _line,
).main
