"""The speed and the memory of a training step: forward and backward, beside eager and
torch.compile.

In: models of `benchmarks.training_models.TIMED` and compilers. Out: a table of milliseconds a step,
first calls, peak memory, speed-ups over eager and their geometric mean; rows in
``results/training_speed``. What always holds: seconds come from one fresh process a model, in which
all compilers share weights and batch and take turns; memory comes from one fresh process a model
and compiler; gradients are judged by float64 in a process of their own, without dropout
(`benchmarks.gradient_errors`): the largest relative error of any parameter's stands beside the
seconds, eager's in brackets.

Memory: "peak" is the process's greatest resident memory during steps after the first two; "above
idle" is that less what it has between steps, when gradients and activations are gone and freed
memory was given back to the system.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import compilers, processes
from benchmarks.results import Store
from benchmarks.tables import geometric_mean, milliseconds, table
from benchmarks.timing import Plan, alternate, speed_up
from benchmarks.training_models import TIMED

MODULE = "benchmarks.training_speed"


class Steps:
    """Training steps of one model (mutable: the module learns nothing, but its buffers change)."""

    def __init__(self, name: str) -> None:
        self.trained = TIMED[name]
        self.module, batches = self.trained.make()
        self.batch = batches[0]

    def step(self, compiler: str) -> Callable[[], float]:
        """A step of the module as that compiler has it. Gradients stay until the next step
        begins.
        """
        inputs, target = self.batch
        function, loss_of, module = (
            compilers.compiler(compiler)(self.module),
            self.trained.loss,
            self.module,
        )

        def step() -> float:
            module.zero_grad(set_to_none=True)
            loss = loss_of(function(inputs), target)
            loss.backward()
            return float(loss.detach())

        return step


def measure_speed(name: str, names: Sequence[str], plan: Plan) -> dict[str, Any]:
    """Seconds of a step by compiler and round."""
    import torch

    steps, functions, first = Steps(name), {}, {}
    losses, failed = {}, {}
    for compiler in names:
        torch.manual_seed(0)
        start = time.perf_counter()
        try:
            functions[compiler] = step = steps.step(compiler)
            losses[compiler] = step()
        except Exception as error:  # a compiler that cannot do this model: the row says so
            failed[compiler] = f"{type(error).__name__}: {error}"[:2000]
            functions.pop(compiler, None)
            continue
        first[compiler] = time.perf_counter() - start
    return {
        "seconds": alternate(functions, (), {}, plan),
        "first": first,
        "losses": losses,
        "failed_compilers": failed,
        "threads": torch.get_num_threads(),
    }


def measure_gradients(name: str, names: Sequence[str]) -> dict[str, Any]:
    """By compiler: the largest relative error of any gradient against float64, with dropout off."""
    from benchmarks import gradient_errors

    steps = Steps(name)
    module, (inputs, target) = gradient_errors.without_dropout(steps.module), steps.batch

    def run(wide: Any) -> None:
        given = [x.double() if x.is_floating_point() else x for x in (inputs, target)]
        steps.trained.loss(wide(given[0]), given[1]).backward()

    truth = gradient_errors.true_gradients(module, run)
    buffers = {key: value.clone() for key, value in module.named_buffers()}
    found: dict[str, Any] = {}
    eager: Any = None
    for compiler in ("eager", *(one for one in names if one != "eager")):
        for key, value in module.named_buffers():
            value.copy_(buffers[key])
        try:
            steps.step(compiler)()
        except Exception:  # the row of seconds says why
            continue
        ours = gradient_errors.gradients_of(module)
        if compiler == "eager":
            eager = ours
        found[compiler] = gradient_errors.largest_errors(truth, eager, ours)
    return found


def measure_memory(name: str, compiler: str) -> dict[str, Any]:
    """MiB: peak during steps, idle between them."""
    import ctypes

    steps = Steps(name)
    step = steps.step(compiler)
    for _ in range(3):
        step()
    steps.module.zero_grad(set_to_none=True)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    idle = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forgets the peak
    for _ in range(4):
        step()
    peak = _resident("VmHWM")
    return {"idle": idle, "peak": peak, "above_idle": peak - idle}


def _resident(key: str) -> float:
    """MiB of resident memory, from the system's account of this process."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {key}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__)
    parser.add_argument(
        "--models", nargs="+", default=list(TIMED), choices=list(TIMED), metavar="NAME"
    )
    parser.add_argument("--compilers", nargs="+", default=list(compilers.DEFAULT), metavar="NAME")
    parser.add_argument(
        "--rounds", type=int, default=7, help="at least 5 for figures that are reported"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="of a turn of one compiler in a round"
    )
    parser.add_argument("--memory", choices=("yes", "no"), default="yes")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds a process may take")
    parser.add_argument("--child", choices=("speed", "memory", "gradients"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    plan = Plan(rounds=chosen.rounds, seconds=chosen.seconds, least=2)
    if "eager" not in chosen.compilers:
        parser.error("--compilers must name eager: speed-ups are over it")
    if chosen.child == "speed":
        processes.answer(measure_speed(chosen.models[0], chosen.compilers, plan))
        return 0
    if chosen.child == "gradients":
        processes.answer(measure_gradients(chosen.models[0], chosen.compilers))
        return 0
    if chosen.child == "memory":
        processes.answer(measure_memory(chosen.models[0], chosen.compilers[1]))
        return 0
    processes.warm_up_files()
    store = Store("training_speed", again=chosen.again)
    rows = {name: _row(store, name, chosen) for name in chosen.models}
    print(f"\n{report(rows, chosen.compilers)}")
    return (
        1 if any(row.get("failed") or row.get("failed_compilers") for row in rows.values()) else 0
    )


def _row(store: Store, name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    child = ["--models", name, "--rounds", str(chosen.rounds), "--seconds", str(chosen.seconds)]

    def measure() -> dict[str, Any]:
        speed = [*child, "--child", "speed", "--compilers", *chosen.compilers]
        row: dict[str, Any] = processes.fresh(MODULE, speed, limit=chosen.limit)
        judged = [*child, "--child", "gradients", "--compilers", *chosen.compilers]
        row["gradients"] = processes.fresh(MODULE, judged, limit=chosen.limit)
        if chosen.memory == "yes":
            row["memory"] = {
                one: processes.fresh(
                    MODULE,
                    [*child, "--child", "memory", "--compilers", "eager", one],
                    limit=chosen.limit,
                )
                for one in row["seconds"]
            }
        return row

    key = (
        f"{name} {' '.join(chosen.compilers)} {chosen.rounds}x{chosen.seconds}"
        f" memory:{chosen.memory}"
    )
    row, _ = store.row(key, measure)
    if "failed" in row:
        print(f"{name} failed: {row['failed']}", flush=True)
        return row
    for compiler, text in row["failed_compilers"].items():
        print(f"  {compilers.title(compiler)} failed: {text}")
    print("  ".join(_line(name, row, chosen.compilers)), flush=True)
    return row


def _line(name: str, row: dict[str, Any], names: Sequence[str]) -> list[str]:
    from benchmarks import gradient_errors

    seconds, memory = row["seconds"], row.get("memory", {})
    line = [TIMED[name].title]
    line += [
        milliseconds(statistics.median(seconds[n])) if n in seconds else "failed" for n in names
    ]
    line += [
        f"{speed_up(seconds['eager'], seconds[n]):.2f}" if n in seconds else ""
        for n in names
        if n != "eager"
    ]
    line += [f"{row['first'][n]:.1f}" if n in row["first"] else "" for n in names]
    line += [gradient_errors.told(row.get("gradients", {}).get(n)) for n in names if n != "eager"]
    for n in names:
        found = memory.get(n)
        line.append(f"{found['peak']:.0f} ({found['above_idle']:.0f})" if found else "")
    return line


def report(rows: dict[str, dict[str, Any]], names: Sequence[str]) -> str:
    """The table, and geometric means."""
    others = [name for name in names if name != "eager"]
    title = compilers.title
    head = [
        "step of",
        *(f"{title(n)} ms" for n in names),
        *(f"{title(n)} speed-up" for n in others),
    ]
    head += [
        *(f"{title(n)} first s" for n in names),
        *(f"{title(n)} gradient error (eager's)" for n in others),
        *(f"{title(n)} peak MiB (above idle)" for n in names),
    ]
    good = {name: row for name, row in rows.items() if "failed" not in row}
    text = table(head, [_line(name, row, names) for name, row in good.items()])
    for other in others:
        ratios = {
            key: speed_up(row["seconds"]["eager"], row["seconds"][other])
            for key, row in good.items()
            if other in row["seconds"]
        }
        worst = min(ratios, key=lambda key: ratios[key], default="")
        if worst:
            mean = geometric_mean(list(ratios.values()))
            text += (
                f"\n{title(other)}: {mean:.3f} times eager over {len(ratios)} steps, lowest"
                f" {ratios[worst]:.3f} ({worst})"
            )
    return text


if __name__ == "__main__":
    sys.exit(main())
