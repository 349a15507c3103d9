"""The programs of `gpu_programs` on a GPU: eager, torch.compile's default and its best mode, ours.

``python -m benchmarks gpu_zoo --halves issue open --out rows.json`` runs each compiler of a program
in a process of its own, each kind with empty caches (a kind's second mode finds those of its first,
so that the first call is that of the first mode). ``--workers`` programs compile side by side;
then, with nothing beside them, they are timed in alternating rounds, one process at a time. A row
has the seconds of the first step, milliseconds of a step that waits for the device (latency) and of
a row of steps, the peak memory of a step, and the largest relative error of an output (inference)
or of any parameter's gradient (training) of the first step against the same program in float64.

The table has a compiler's better figure of the two; "best" is the better mode of torch.compile.
Ratios are theirs over ours: above 1, ours is quicker. ``--shard 1/4`` measures every fourth
program, for machines with several GPUs; ``--show`` prints the table of what was measured.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.timing import geometric_mean, table

COMPILERS = ("eager", "torch", "torch:reduce-overhead", "ours")
HALVES = ("issue", "open", "held_out")

#: Steps before the rounds; rounds, and the seconds that each takes at least.
WARM_UP, ROUNDS, ROUND_SECONDS = 12, 4, 0.12


# The process of one compiler ----------------------------------------------------------------------


class Measured:
    """A program under one compiler. Mutable: the steps so far."""

    def __init__(self, program: str, compiler: str) -> None:
        self.program, self.compiler = program, compiler
        self.number = 0

    def __call__(self, question: str) -> dict[str, Any]:
        answers = {"prepare": self.prepare, "tiles": self.measure_tiles, "round": self.round}
        return answers[question]()

    def prepare(self) -> dict[str, Any]:
        """Compiles, checks the first step, warms up."""
        import torch

        from benchmarks import gpu
        from benchmarks.gpu_programs import PROGRAMS
        from benchmarks.measured_steps import measure_tiles

        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        self.built = built = PROGRAMS[self.program].build("cuda")
        wide = built.in_float64()
        self.run = gpu.compiled(self.compiler, built.target)
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = built.step(self.run, built.batches[0])
        torch.cuda.synchronize()
        first = time.perf_counter() - started
        errors = _errors(built, result, wide)
        del wide, result
        gc.collect()
        torch.cuda.empty_cache()
        for _ in range(WARM_UP):
            self.step()
        if self.compiler.startswith("ours"):
            measure_tiles(self.step, measure=False)
        torch.cuda.empty_cache()  # for the programs that are timed first
        return {
            "first_s": round(first, 2),
            **errors,
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
        }

    def measure_tiles(self) -> dict[str, Any]:
        """Has block sizes measured, with nothing beside it; then measures memory."""
        import torch

        from benchmarks.measured_steps import measure_tiles

        seconds = measure_tiles(self.step) if self.compiler.startswith("ours") else 0.0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        for _ in self.built.batches:
            self.step()
        torch.cuda.synchronize()
        return {
            "tiles_s": round(seconds, 2),
            "peak_MiB": round(torch.cuda.max_memory_allocated() / 2**20, 1),
            "reserved_MiB": round(max(before, torch.cuda.max_memory_reserved()) / 2**20, 1),
            **self._noted(),
        }

    def _noted(self) -> dict[str, Any]:
        from benchmarks.measured_steps import cuda_graphs

        return {"cuda_graphs": [line[:200] for line in cuda_graphs()]}

    def step(self) -> Any:
        self.number += 1
        return self.built.step(self.run, self.built.batches[self.number % len(self.built.batches)])

    def round(self) -> dict[str, float]:
        """Milliseconds of a step: the median of steps that are waited for, the mean of a row."""
        import torch

        latencies: list[float] = []
        end = time.perf_counter() + ROUND_SECONDS
        while len(latencies) < 5 or (time.perf_counter() < end and len(latencies) < 50):
            torch.cuda.synchronize()
            started = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            latencies.append(time.perf_counter() - started)
        count = max(5, min(100, int(ROUND_SECONDS / min(latencies))))
        started = time.perf_counter()
        for _ in range(count):
            self.step()
        torch.cuda.synchronize()
        in_a_row = (time.perf_counter() - started) / count
        return {"latency": statistics.median(latencies) * 1e3, "in_a_row": in_a_row * 1e3}


def _errors(built: Any, result: Any, wide: Any) -> dict[str, Any]:
    """The largest relative errors of outputs and gradients; why there are none, where float64 fails."""
    import torch
    from torch.utils._pytree import tree_leaves

    def tensors(value: Any) -> list[Any]:
        leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        return [leaf.detach() for leaf in leaves if leaf.is_floating_point()]

    try:
        reference = tensors(wide.step(wide.target, wide.batches[0]))
    except (RuntimeError, NotImplementedError) as error:
        return {"no_float64": str(error)[:200]}
    errors = {"error": _largest(tensors(result), reference)}
    if built.training and isinstance(built.target, torch.nn.Module):
        pairs: list[Any] = list(
            zip(built.target.parameters(), wide.target.parameters(), strict=True)
        )
        pairs = [(a.grad, b.grad) for a, b in pairs if a.grad is not None and b.grad is not None]
        scale = max((float(b.norm()) for _, b in pairs), default=0.0)
        # a gradient that is rounding error alone has no relative error
        pairs = [(a, b) for a, b in pairs if float(b.norm()) > 1e-7 * scale]
        errors["gradient_error"] = _largest(*zip(*pairs, strict=True)) if pairs else 0.0
    return errors


def _largest(values: Sequence[Any], reference: Sequence[Any]) -> float:
    """The largest 2-norm of a difference, relative to the reference's; infinite where a value is missing."""
    if len(values) != len(reference):
        return float("inf")
    errors = [
        float(
            (value.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
        )
        for value, expected in zip(values, reference, strict=True)
    ]
    return max(errors, default=0.0)


# Some programs ------------------------------------------------------------------------------------

Rows = dict[str, dict[str, Any]]


def measured(
    programs: Sequence[str], compilers: Sequence[str], limit: float
) -> Iterator[tuple[str, Rows]]:
    """Each program's rows by compiler. All compile side by side; then one process at a time runs."""
    modes: defaultdict[str, list[str]] = defaultdict(list)
    for name in compilers:
        modes[name.partition(":")[0]].append(name)
    rows: dict[str, Rows] = {program: {} for program in programs}
    workers: dict[tuple[str, str], harness.Worker] = {}
    with ExitStack() as everything, ThreadPoolExecutor(len(programs) * len(modes)) as pool:
        stacks = {program: everything.enter_context(ExitStack()) for program in programs}

        def prepare(program: str, kind: str) -> None:
            stack = stacks[program]
            caches = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))
            for name in modes[kind]:
                worker = stack.enter_context(harness.worker(Measured, program, name, caches=caches))
                rows[program][name] = worker.row("prepare", limit=limit)
                workers[program, name] = worker

        waiting = [pool.submit(prepare, program, kind) for program in programs for kind in modes]
        for future in waiting:
            future.result()
        for program, stack in stacks.items():
            _timed(rows[program], {name: workers[program, name] for name in compilers})
            stack.close()  # whose memory the next ones may need
            yield program, rows[program]


def _timed(rows: Rows, workers: dict[str, harness.Worker]) -> None:
    """Adds the medians of alternating rounds to the rows of a program."""
    rounds: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for name, worker in workers.items():
        if "failed" not in rows[name]:
            rows[name] |= worker.row("tiles", limit=100)
    ready = [name for name in workers if "failed" not in rows[name]]
    for number in range(ROUNDS):
        first = number % max(len(ready), 1)
        for name in (*ready[first:], *ready[:first]):
            if "failed" not in rows[name]:
                answer = workers[name].row("round", limit=60)
                if "failed" in answer:
                    rows[name] = answer
                rounds[name].append(answer)
    for name, times in rounds.items():
        if "failed" not in rows[name]:
            for key in ("latency", "in_a_row"):
                rows[name][f"{key}_ms"] = round(statistics.median(t[key] for t in times), 4)


def main(arguments: Sequence[str]) -> int:
    """Measures what --out lacks, prints the table; 1 if a compiler of ours failed."""
    from benchmarks.gpu_programs import PROGRAMS

    parser = harness.options("gpu_zoo", __doc__, limit=200, again=False)
    parser.add_argument("--halves", nargs="*", default=list(HALVES), choices=HALVES)
    parser.add_argument("--programs", nargs="*", default=None, metavar="PROGRAM")
    parser.add_argument("--compilers", nargs="*", default=list(COMPILERS), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2, help="programs that compile side by side")
    parser.add_argument("--shard", default="1/1", help="NUMBER/OF: a part of the programs")
    parser.add_argument(
        "--seconds", type=float, default=540, help="start no program after this long"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_zoo.json"))
    parser.add_argument("--show", nargs="*", type=Path, default=None, help="files to print, measuring nothing")  # fmt: skip
    chosen = parser.parse_args(arguments)
    stored: dict[str, Any] = {}
    for path in chosen.show or [chosen.out]:
        if path.exists():
            stored |= json.loads(path.read_text(encoding="utf-8"))
    names = chosen.programs or [n for n, p in PROGRAMS.items() if p.half in chosen.halves]
    if chosen.show is None:
        harness.require_gpu()
        number, of = map(int, chosen.shard.split("/"))
        wanted = [name for name in names[number - 1 :: of] if name not in stored]
        end = time.monotonic() + chosen.seconds
        for start in range(0, len(wanted), chosen.workers):
            if time.monotonic() < end:
                some = wanted[start : start + chosen.workers]
                for name, rows in measured(some, chosen.compilers, chosen.limit):
                    stored[name] = rows
                    chosen.out.write_text(json.dumps(stored), encoding="utf-8")
    print(report({name: stored[name] for name in names if name in stored}))
    return int(any("failed" in rows.get("ours", {}) for rows in stored.values()))


# The table ----------------------------------------------------------------------------------------


def _best(row: dict[str, Any]) -> float:
    """The better figure of a row, infinite where it failed."""
    figures: list[float] = [row.get(key, float("inf")) for key in ("latency_ms", "in_a_row_ms")]
    return min(figures)


def report(stored: dict[str, dict[str, Any]]) -> str:
    """The table, and the means by half and kind."""
    from benchmarks.gpu_programs import PROGRAMS

    head = ["program", "eager ms", "torch", "best", "ours", "best/ours", "eager/ours", "first s", "torch's",
            "peak MiB", "torch's", "error", "eager's"]  # fmt: skip
    lines = []
    groups: defaultdict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for name, rows in stored.items():
        modes = {key: row for key, row in rows.items() if key.startswith("torch")}
        ours, eager = rows.get("ours", {}), rows.get("eager", {})
        default = modes.get("torch", {})
        times = [_best(eager), _best(default), min(map(_best, modes.values()), default=float("inf")), _best(ours)]  # fmt: skip
        error = "gradient_error" if "gradient_error" in ours else "error"
        ratios = [times[2] / times[3], times[0] / times[3]]
        program = PROGRAMS[name]
        groups[program.half, "training" if program.training else "inference"].append(ratios)
        lines.append([
            name, *(f"{t:.3f}" for t in times), *(f"{r:.2f}" for r in ratios), _number(ours, "first_s"),
            _number(default, "first_s"), _number(ours, "peak_MiB"), _number(default, "peak_MiB"),
            _number(ours, error, ".1e"), _number(eager, error, ".1e"),
        ])  # fmt: skip
    means = []
    for (half, kind), pairs in sorted(groups.items()):
        finite = [best for best, _ in pairs if 0 < best < float("inf")]
        if finite:
            mean, slower = geometric_mean(finite), sum(eager < 1 for _, eager in pairs)
            text = (
                f"best/ours {mean:.3f} by geometric mean of {len(finite)}, least {min(finite):.2f}"
            )
            means.append(f"{half}, {kind}: {text}; {slower} slower than eager")
    failed = [
        f"{name} @ {key}: {row['failed'][-200:]}"
        for name, rows in stored.items()
        for key, row in rows.items()
        if "failed" in row
    ]
    return "\n".join([table(head, lines), "", *means, *failed])


def _number(row: dict[str, Any], key: str, form: str = "g") -> str:
    return format(row[key], form) if key in row else "-"
