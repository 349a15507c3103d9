"""The kernels of one program on a GPU, ours beside torch.compile's.

``python -m benchmarks kernels PROGRAM [PROGRAM ...] --against torch`` runs each compiler in a process
of its own with empty caches, profiles some steps, and aligns the kernels (`kernel_alignment`). It
prints

- a line a compiler: milliseconds of a step, of it the device is busy, kernels, first call, peak;
- the sections of a step with the largest difference. A section is a library call that both make, or
  what runs between two of these. Ours has for each kernel its loops (a reduced one with ``*``),
  blocks, microseconds a launch, the megabytes that it must move, and what share of the measured copy
  bandwidth that is;
- the kernels between which the device is idle longest, of both;
- what the difference consists of, largest first, with the file that decides it;
- last, of all programs, our kernels that take longest beyond what a copy of their bytes takes.

All processes compile side by side; then one at a time is profiled, with nothing beside it.

Programs are those of `gpu_programs` and the rows of `gpu`. Times are the device's, of a step without
a profiler for the first line. CUDA graphs do not change names.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.kernel_alignment import (
    DECIDED_BY,
    Launch,
    Section,
    align,
    causes,
    microseconds,
    own_times,
    pauses,
)
from benchmarks.timing import table

#: Steps before the profile, and profiled.
WARM_UP, PROFILED = 12, 3

#: Sections and kernels of a section that are printed.
SECTIONS, KERNELS = 14, 6

#: Kernels of the last table; the microseconds that a launch takes without any bytes.
EXCESSES, LAUNCH = 60, 1.5

#: Places where the device is idle that are printed of each compiler.
PAUSES = 5


def step_of(program: str, compiler: str) -> Callable[[], Any]:
    """Returns a step of a program, compiled by ``ours``, ``torch``, ``torch:MODE`` or not at all."""
    import torch

    from benchmarks import gpu
    from benchmarks.gpu_programs import PROGRAMS

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    if program in PROGRAMS:
        built = PROGRAMS[program].build("cuda", False)
        run = gpu.compiled(compiler, built.target)
        batches = built.batches
        number = 0

        def step() -> Any:
            nonlocal number
            number += 1
            return built.step(run, batches[number % len(batches)])

        return step
    function, inputs, parameters = gpu.to_device(program, *gpu.prepare(program))
    training = gpu.ROWS[program][1]
    return gpu.step_of(gpu.compiled(compiler, function), inputs, parameters, training)


class _Rows(logging.Handler):
    """Collects the rows of inductor's kernel tables by kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        arguments: Any = record.args
        for row in arguments[1].rows:
            blocks = " ".join(f"{name}={size}" for name, size in row.blocks.items())
            self.rows[row.name].append((row.nbytes, f"{row.loops} {blocks}"))


class Profiled:
    """A program under one compiler, in a process of its own."""

    def __init__(self, program: str, compiler: str) -> None:
        self.program, self.compiler = program, compiler

    def __call__(self, question: str) -> dict[str, Any]:
        return {"prepare": self.prepare, "profile": self.profile}[question]()

    def prepare(self) -> dict[str, Any]:
        """Compiles and warms up; returns the seconds of the first step."""
        import torch

        from benchmarks.measured_steps import counting, counts, measure_tiles

        self.collected = _Rows()
        logger = logging.getLogger("tracer_core.kernels")
        logger.addHandler(self.collected)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        self.step = step_of(self.program, self.compiler)
        torch.cuda.synchronize()
        with counting(self.compiler.startswith("ours")) as counted:
            start = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            first = time.perf_counter() - start
            for _ in range(WARM_UP):
                self.step()
            if self.compiler.startswith("ours"):
                measure_tiles(self.step, measure=False)
        torch.cuda.empty_cache()  # for the programs that are profiled first
        return {"first_s": round(first, 2), **({"cuda_graphs": []} | counts(*counted))}

    def profile(self) -> dict[str, Any]:
        """Returns the figures and the launches of a step, with nothing beside it on the device."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        from benchmarks import gpu
        from benchmarks.measured_steps import cuda_graphs, measure_tiles

        graphs = {}
        if self.compiler.startswith("ours"):
            measure_tiles(self.step)
            graphs["cuda_graphs"] = cuda_graphs()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        latency, back_to_back = gpu.timed(self.step)
        with profile(activities=[ProfilerActivity.CUDA]) as result:
            for _ in range(PROFILED):
                self.step()
            torch.cuda.synchronize()
        return {
            "program": self.program,
            "compiler": self.compiler,
            "latency_ms": round(latency, 4),
            "back_to_back_ms": round(back_to_back, 4),
            "peak_MiB": round(peak / 2**20, 1),
            "copy_TB_s": round(copy_bandwidth() / 1e12, 3),
            "launches": _launches(result, self.collected.rows),
            **graphs,
            "device": torch.cuda.get_device_name(0),
            "versions": {"torch": torch.__version__},
        }


def copy_bandwidth() -> float:
    """Returns bytes read and written a second by a device copy of a gibibyte."""
    import torch

    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(6):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        target.copy_(source)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return 2 * source.numel() / float(statistics.median(times[1:]))


def _launches(result: Any, rows: dict[str, list[tuple[int, str]]]) -> list[list[Any]]:
    """Returns [name, microseconds, bytes, detail, microseconds idle before] of each launch of a step
    in order; the times are medians over the steps where each has the same launches, those of the
    last step else."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        result.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text(encoding="utf-8"))["traceEvents"]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    kernels = sorted((e for e in events if e.get("cat") in kinds), key=lambda event: event["ts"])
    count = len(kernels) // PROFILED
    steps = [kernels[number * count : (number + 1) * count] for number in range(PROFILED)]
    equal = all([e["name"] for e in step] == [e["name"] for e in steps[0]] for step in steps)
    spans = [(event["ts"], event["ts"] + event["dur"]) for event in kernels]
    own = dict(zip(map(id, kernels), own_times(spans), strict=True))
    answer = []
    turns: Counter[str] = Counter()  # a kernel of several sizes has a row a launch, in launch order
    for place, event in enumerate(steps[-1]):
        chosen = steps if equal else steps[-1:]
        times, idle = zip(*(own[id(step[place])] for step in chosen), strict=True)
        described = rows.get(event["name"]) or [(0, "")]
        nbytes, detail = described[turns[event["name"]] % len(described)]
        turns[event["name"]] += 1
        took, waited = (round(statistics.median(values), 2) for values in (times, idle))
        answer.append([event["name"][:150], took, nbytes, detail, waited])
    return answer


def report(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The tables of one program."""
    launches = [[Launch(*row) for row in result["launches"]] for result in (ours, theirs)]
    sections = align(*launches)
    lines = [f"## {ours['program']}: {ours['compiler']} beside {theirs['compiler']}", ""]
    head = ["compiler", "in a row ms", "latency ms", "busy ms", "kernels", "first s", "peak MiB"]
    rows = []
    for result, of_step in zip((ours, theirs), launches, strict=True):
        rows.append([result["compiler"], f"{result['back_to_back_ms']:.3f}", f"{result['latency_ms']:.3f}",
                     f"{microseconds(of_step) / 1e3:.3f}", str(len(of_step)), f"{result['first_s']:.1f}",
                     f"{result['peak_MiB']:.0f}"])  # fmt: skip
    lines += [table(head, rows), ""]
    lines += [f"cuda graphs: {line[:160]}" for line in ours["cuda_graphs"]]
    lines += [f"fallback: {line[:240]}" for line in ours.get("fallbacks", ())]
    if ours.get("breaks"):
        lines.append(
            f"{ours['graphs']} graphs, {ours['breaks']} breaks: {', '.join(ours['kinds'])}"
        )
    for section in sections[:SECTIONS]:
        if abs(section.difference) < 5:
            break
        lines += _described(section, ours["copy_TB_s"])
    for result, of_step in zip((ours, theirs), launches, strict=True):
        if of_step:
            lines += [f"idle, {result['compiler']}: {times / 1e3:.3f} ms, {count} x {between}"
                      for between, count, times in pauses(of_step)[:PAUSES]]  # fmt: skip
    idle = [
        max(0.0, result["back_to_back_ms"] * 1e3 - microseconds(of_step))
        for result, of_step in zip((ours, theirs), launches, strict=True)
    ]
    rows = [["idle device", f"{idle[0] / 1e3:.3f}", f"{idle[1] / 1e3:.3f}", "", "", DECIDED_BY["idle device"]]]  # fmt: skip
    for name, cause in causes(sections).items():
        rows.append([name, f"{cause.ours / 1e3:.3f}", f"{cause.theirs / 1e3:.3f}", *map(str, cause.kernels),
                     DECIDED_BY[name]])  # fmt: skip
    rows.sort(key=lambda row: float(row[2]) - float(row[1]))
    head = ["what", "ours ms", "theirs ms", "kernels", "theirs", "decided in"]
    return "\n".join([*lines, "", "What the difference consists of:", "", table(head, rows), ""])


def excesses(profiles: Sequence[dict[str, Any]]) -> str:
    """Returns the table of the kernels of all programs that take longest beyond what a copy of their
    bytes and a launch take."""
    rows = []
    for result in profiles:
        of_step = [Launch(*row) for row in result["launches"]]
        busy = microseconds(of_step)
        equal: defaultdict[tuple[str, str], list[Launch]] = defaultdict(list)
        for launch in of_step:
            if launch.nbytes:
                equal[launch.name, launch.detail].append(launch)
        for (name, detail), launches in equal.items():
            count, took = len(launches), microseconds(launches)
            ideal = sum(launch.nbytes for launch in launches) / result["copy_TB_s"] / 1e6
            rows.append((
                took - ideal - LAUNCH * count, result["program"], f"{took / busy:.1%}", str(count),
                f"{took / count:.1f}", f"{launches[0].nbytes / 1e6:.1f}", f"{ideal / took:.0%}",
                f"{name[:70]} {detail[:60]}",
            ))  # fmt: skip
    rows.sort(reverse=True)
    head = ["beyond us", "program", "of the step", "launches", "us", "MB", "of a copy", "kernel"]
    return table(head, [[f"{row[0]:.0f}", *row[1:]] for row in rows[:EXCESSES]])


def _described(section: Section, copy: float) -> list[str]:
    """The lines of a section; microseconds are of one of its occurrences."""
    count = section.count
    ours, theirs = microseconds(section.ours), microseconds(section.theirs)
    lines = [f"{section.difference / 1e3:+.3f} ms: {count} x ({ours / count:.1f} us, theirs {theirs / count:.1f})"]  # fmt: skip
    for launch in sorted(section.ours, key=lambda item: -item.microseconds)[:KERNELS]:
        share = ""
        if launch.nbytes:
            rate = launch.nbytes / launch.microseconds / 1e6
            share = f" {launch.nbytes / count / 1e6:.1f} MB {rate / copy:.0%} of a copy"
        lines.append(f"    ours   {launch.microseconds / count:8.1f} us  {launch.name[:70]} {launch.detail}{share}")  # fmt: skip
    for launch in sorted(section.theirs, key=lambda item: -item.microseconds)[:KERNELS]:
        lines.append(f"    theirs {launch.microseconds / count:8.1f} us  {launch.name[:100]}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Profiles what --out lacks, prints the tables; 1 if a process failed."""
    parser = harness.options("kernels", __doc__, limit=240, again=False)
    parser.add_argument("programs", nargs="+", metavar="PROGRAM")
    parser.add_argument("--against", default="torch", help="torch, torch:MODE or eager")
    parser.add_argument("--ours", default="ours", help="ours or ours:MODE")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that compile side by side"
    )
    parser.add_argument(
        "--out", type=Path, default=None, help="a file with what was profiled (JSON)"
    )
    chosen = parser.parse_args(arguments)
    stored: dict[str, Any] = {}
    if chosen.out is not None and chosen.out.exists():
        stored = json.loads(chosen.out.read_text(encoding="utf-8"))
    wanted = [
        (program, compiler)
        for program in chosen.programs
        for compiler in (chosen.ours, chosen.against)
    ]
    missing = [pair for pair in wanted if " @ ".join(pair) not in stored]
    if missing:
        harness.require_gpu()
    with ExitStack() as everything, ThreadPoolExecutor(chosen.workers) as pool:
        workers: dict[tuple[str, str], harness.Worker] = {}
        stacks = {pair: everything.enter_context(ExitStack()) for pair in missing}

        def prepare(pair: tuple[str, str]) -> dict[str, Any]:
            workers[pair] = stacks[pair].enter_context(harness.worker(Profiled, *pair))
            return workers[pair].row("prepare", limit=chosen.limit)

        prepared = dict(zip(missing, pool.map(prepare, missing), strict=True))
        for pair, result in prepared.items():
            if "failed" not in result:
                result |= workers[pair].row("profile", limit=chosen.limit)
            stacks[pair].close()
            stored[" @ ".join(pair)] = result
            if chosen.out is not None:
                chosen.out.write_text(json.dumps(stored), encoding="utf-8")
    failed = False
    for program in chosen.programs:
        results = [stored[f"{program} @ {compiler}"] for compiler in (chosen.ours, chosen.against)]
        if any("failed" in result for result in results):
            failed = True
            print(
                f"## {program}: failed\n",
                "\n".join(str(r["failed"]) for r in results if "failed" in r),
            )
        else:
            print(report(*results), flush=True)
    profiles = [stored[f"{program} @ {chosen.ours}"] for program in chosen.programs]
    print(excesses([profile for profile in profiles if "failed" not in profile]))
    return int(failed)
