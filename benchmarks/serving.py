"""A server's first seconds: when the first result is there, and how long the longest call takes.

In: models, ways to compile, how busy the server is. Out: rows in
benchmarks/results/serving/, and tables. `main`: one request after another from the moment at which
`compile` is called; ``full``: without a pause; ``half``: with a pause as long as the call before.
`start`: twenty models made ready in one process: one after another, in the background, by
`compile_many`, or by a second process with what a first one kept.
What always holds: a fresh process with empty caches a row; the model was called eagerly before, so
that its memory and torch's native kernels are there.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import compilers, harness, models

#: Seconds of requests; calls at the end whose median is what the server settled at.
SECONDS, SETTLED = 20.0, 5

WAYS = ("eager", "now", "background", "torch")
#: What a server may have side by side.
TWENTY = (
    *(name for name, model in models.MODELS.items() if "peers1" in model.groups),
    "resnet18_64", "densenet121_128", "bert_12", "vit_tiny_224", "gpt2_64",
)  # fmt: skip
#: How twenty models are made ready: one after another, in the background, by `compile_many`, and what
#: a second process finds.
STARTS = ("now", "background", "compile_many", "warm", "torch", "torch_warm")


def _compiler(way: str) -> Callable[[Any], Any]:
    if way != "background":
        return compilers.compiler("ours" if way == "now" else way)
    import tracer_core

    return lambda function: tracer_core.compile(function, when="background")


def measure(name: str, way: str, load: str) -> dict[str, Any]:
    """The requests of one server."""
    import torch

    model = models.MODELS[name]
    models.import_library(model.library)
    program = model.program()
    with model.mode():
        before = []
        for _ in range(3):
            begin = time.perf_counter()
            program.call(program.function)
            before.append(time.perf_counter() - begin)
        start = time.perf_counter()
        compiled = _compiler(way)(program.function)
        calls: list[tuple[float, float]] = []  # when it ended, how long it took
        while not calls or calls[-1][0] < SECONDS:
            begin = time.perf_counter()
            program.call(compiled)
            end = time.perf_counter()
            calls.append((end - start, end - begin))
            if load == "half":
                time.sleep(end - begin)
    taken = [seconds for _, seconds in calls]
    settled = statistics.median(taken[-SETTLED:])
    return {
        "first_result": calls[0][0],
        "longest": max(taken),
        "longest_later": max(taken[1:], default=0.0),
        "settled": settled,
        "settled_after": next(at for at, seconds in calls if seconds < 1.3 * settled),
        "eager": statistics.median(before),
        "requests": len(calls),
        "threads": torch.get_num_threads(),
    }


def _line(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['first_result']:.2f}",
        f"{row['longest']:.2f}",
        f"{row['longest_later'] * 1e3:.0f}",
        f"{row['settled_after']:.1f}",
        f"{row['settled'] * 1e3:.0f}",
        f"{row['eager'] * 1e3:.0f}",
        str(row["requests"]),
    ]


GRID = harness.Grid(
    "serving",
    __doc__,
    {"models": ("bert_12", "resnet18_64", "bert_128", "resnet18_224"), "ways": WAYS, "loads": ("full", "half")},
    measure,
    ("first result s", "longest s", "longest later ms", "settled after s", "settled ms", "eager ms",
     "requests"),
    _line,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    harness.warm_up_files()
    return GRID.main(arguments)


# A server's start ---------------------------------------------------------------------------------


def measure_start(way: str) -> dict[str, Any]:
    """Seconds until all models are ready (compiled); first: until the first of them has answered;
    answered: until each has."""
    if not way.endswith("warm"):
        return _started(way)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as caches:
        base = "torch" if way.startswith("torch") else "now"
        run = functools.partial(harness.fresh, _started, base, limit=3000.0, caches=caches)
        run()
        row: dict[str, Any] = run()
    return row


def _started(way: str) -> dict[str, Any]:
    import tracer_core

    programs = []
    with contextlib.ExitStack() as modes:
        for name in TWENTY:
            model = models.MODELS[name]
            models.import_library(model.library)
            programs.append(model.program())
        modes.enter_context(model.mode())
        for program in programs:
            program.call(program.function)
        start, begin = time.perf_counter(), time.process_time()
        first = 0.0
        if way == "compile_many":
            inputs = [tracer_core.Inputs(*program.args, **program.kwargs) for program in programs]
            pairs = [(item.function, value) for item, value in zip(programs, inputs, strict=True)]
            result = tracer_core.compile_many(pairs, progress=False)
        else:
            result = []
            for program in programs:
                result.append(_compiler(way)(program.function))
                program.call(result[-1])
                first = first or time.perf_counter() - start
        answered = time.perf_counter() - start
        while way == "background" and not tracer_core.progress(wait=60).is_done:
            pass
        ready = time.perf_counter() - start
        seconds = time.process_time() - begin
        for program, fast in zip(programs, result, strict=True):
            program.call(fast)
    return {
        "ready": ready, "first": first or ready, "answered": answered, "cpu": seconds,
        "models": len(programs),
    }  # fmt: skip


def start(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    harness.warm_up_files()
    return harness.Grid(
        "server_start",
        __doc__,
        {"ways": STARTS},
        measure_start,
        ("ready s", "first answer s", "each answered s", "processor s of this process", "models"),
        lambda row: [
            *(f"{row[name]:.1f}" for name in ("ready", "first", "answered", "cpu")),
            str(row["models"]),
        ],
        limit=6000.0,
    ).main(arguments)
