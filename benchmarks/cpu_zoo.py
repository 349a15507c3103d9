"""Models of a CPU by one thread's processor time: inference, frozen, training, beside torch.compile.

In: `cpu_models.NEW`, and the rows of `cpu_models.MODELS` by name (batch 0: their own). Out: rows in
``results/cpu_zoo``. Each compiler of a row has a fresh process with empty caches and the same weights and
inputs; the processes take turns in rounds. Seconds are `time.thread_time` of single calls (of an engine,
`time.process_time`), so that other work on the machine counts less; least and lower quartile
over all rounds. A training step is forward, mean of squares, backward, gradients set to None, with
dropout 0. ``--avx2`` acts a processor without AVX-512.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import compilers, cpu_models, harness
from benchmarks.timing import geometric_mean, table

SINGLE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TRACER_ALWAYS_COMPILED": "1"}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "TRACER_CPU": "x86-64-v3",
}
COLUMNS = {
    "inference": ("eager", "torch", "ours", "ours+freeze"),
    "training": ("eager", "torch", "ours"),
}


class Way:
    """One compiler of one row, which answers questions (mutable: the first makes what turns call)."""

    def __init__(
        self, model: str, batch: int, dtype: str, kind: str, compiler: str, folder: str
    ) -> None:
        import torch

        torch.set_num_threads(1)
        self._program = cpu_models.new_program(model, batch, dtype, kind == "training")
        self._training, self._compiler = kind == "training", compiler
        self._folder, self._call = Path(folder), lambda: None

    def __call__(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answers one question."""
        answer: dict[str, Any] = getattr(self, f"_{question.pop('do')}")(**question)
        return answer

    def _first(self) -> dict[str, Any]:
        """Seconds of compile and the first call, and how far its results are from eager's."""
        import torch

        from tracer_core.testing.compare import tensors_in

        start = time.perf_counter()
        compiled = compilers.compiler(self._compiler)(self._program.function)
        self._call = self._step(compiled) if self._training else self._inference(compiled)
        result = self._call()
        seconds = time.perf_counter() - start
        actual = [t for t in tensors_in(result) if t.is_floating_point()]
        file = self._folder / "eager.pt"
        if self._compiler == "eager":
            torch.save(actual, file)
        wanted = torch.load(file)
        norms = [(a.double() - b.double()).norm() ** 2 for a, b in zip(actual, wanted, strict=True)]
        total = sum(float(b.double().norm() ** 2) for b in wanted)
        return {
            "first_call": seconds,
            "difference": (float(sum(norms)) / max(total, 1e-300)) ** 0.5,
        }

    def _inference(self, compiled: Callable[..., Any]) -> Callable[[], Any]:
        import torch

        @torch.no_grad()
        def call() -> Any:
            return self._program.call(compiled)

        return call

    def _step(self, compiled: Callable[..., Any]) -> Callable[[], Any]:
        from tracer_core.testing.compare import tensors_in

        parameters = list(self._program.function.parameters())

        def step() -> Any:
            outputs = [t for t in tensors_in(self._program.call(compiled)) if t.is_floating_point()]
            sum(t.float().pow(2).mean() for t in outputs if t.requires_grad).backward()
            gradients = [p.grad for p in parameters if p.grad is not None]
            for parameter in parameters:
                parameter.grad = None
            return gradients

        return step

    def _turn(self, seconds: float, least: int) -> dict[str, Any]:
        """Seconds of calls over one turn, whose first call is not counted."""
        # An engine computes in a thread of its own.
        engine = self._compiler in compilers.ENGINES
        clock = time.process_time if engine else time.thread_time
        self._call()
        samples: list[float] = []
        end = time.perf_counter() + seconds
        while len(samples) < least or time.perf_counter() < end:
            start = clock()
            self._call()
            samples.append(clock() - start)
        return {"samples": samples}


def measure(
    model: str,
    batch: int,
    dtype: str,
    kind: str,
    names: Sequence[str],
    environment: dict[str, str],
    rounds: int,
    limit: float,
) -> dict[str, Any]:
    """One row: milliseconds by compiler, first calls, differences from eager's results."""
    failed: dict[str, str] = {}
    first: dict[str, dict[str, Any]] = {}
    samples: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        contextlib.ExitStack() as running,
    ):
        workers: dict[str, harness.Worker] = {}
        for name in names:
            arguments = (model, batch, dtype, kind, name, folder)
            child = harness.worker(Way, *arguments, environment=environment)
            worker = running.enter_context(child)
            try:
                first[name] = worker.ask({"do": "first"}, limit=limit)
            except harness.Failed as error:
                failed[name] = str(error)[-600:]
                continue
            workers[name] = worker
        for number in range(rounds):
            for name in [
                *list(workers)[number % len(workers) :],
                *list(workers)[: number % len(workers)],
            ]:
                question = {"do": "turn", "seconds": 0.3, "least": 2}
                answer = workers[name].ask(question, limit=limit)
                samples.setdefault(name, []).extend(answer["samples"])
    return {
        "milliseconds": {
            name: {
                "least": round(min(times) * 1e3, 3),
                "lower quartile": round(statistics.quantiles(times)[0] * 1e3, 3),
                "calls": len(times),
            }
            for name, times in samples.items()
        },
        "first_call": {name: round(answer["first_call"], 1) for name, answer in first.items()},
        "differences": {name: answer["difference"] for name, answer in first.items()},
        "failed_compilers": failed,
    }


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options("cpu_zoo", __doc__, limit=400.0)
    parser.add_argument("--models", nargs="+", default=list(cpu_models.NEW), metavar="NAME")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--kinds", nargs="+", default=list(COLUMNS), choices=list(COLUMNS))
    parser.add_argument("--compilers", nargs="+", metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--avx2", action="store_true")
    parser.add_argument("--out", type=Path, help="another file of results")
    chosen = parser.parse_args(arguments)
    environment = SINGLE_THREAD | (AVX2 if chosen.avx2 else {})
    store = harness.Store("cpu_zoo", again=chosen.again, path=chosen.out)
    rows = {}
    wanted = (
        row
        for name in chosen.models
        for row in product(
            [name],
            chosen.batches if name in cpu_models.NEW else [0],
            chosen.dtypes,
            chosen.kinds,
        )
    )
    for model, batch, dtype, kind in wanted:
        names = [n for n in COLUMNS[kind] if not chosen.compilers or n in chosen.compilers]
        names += [
            n for n in chosen.compilers or () if n in compilers.ENGINES and kind == "inference"
        ]
        target = "avx2" if chosen.avx2 else "native"
        key = f"{model} {batch} {dtype} {kind} {target} {' '.join(names)}"
        work = partial(
            measure, model, batch, dtype, kind, names, environment, chosen.rounds, chosen.limit
        )
        rows[key], _ = store.row(key, work)
        print(key, _texts(rows[key]), flush=True)
    print(f"\n{report(rows)}")
    return (
        1 if any(row.get("failed") or row.get("failed_compilers") for row in rows.values()) else 0
    )


def _texts(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    parts = [f"{name} {times['least']}" for name, times in row["milliseconds"].items()]
    parts += [f"{name} failed: {text}" for name, text in row["failed_compilers"].items()]
    return " ".join([*parts, f"differences {max(row['differences'].values(), default=0):.1e}"])


def report(rows: dict[str, dict[str, Any]]) -> str:
    """The table: least milliseconds, and eager's and torch.compile's time over ours."""
    lines: list[list[str]] = []
    over: dict[str, list[float]] = {}
    for key, row in rows.items():
        least = {name: times["least"] for name, times in row.get("milliseconds", {}).items()}
        ratios = {
            f"{base} / {ours}": least[base] / least[ours]
            for ours, base in product(
                ("ours", "ours+freeze"), ("eager", "torch", *compilers.ENGINES)
            )
            if ours in least and base in least
        }
        for name, ratio in ratios.items():
            over.setdefault(name, []).append(ratio)
        lines.append(
            [" ".join(key.split()[:5]), *(f"{name} {ratio:.2f}" for name, ratio in ratios.items())]
        )
    width = max(map(len, lines), default=0)
    text = table([""] * width, [line + [""] * (width - len(line)) for line in lines])
    means = (f"{name}: {geometric_mean(ratios):.3f}" for name, ratios in over.items())
    return "\n".join([text, *means])
