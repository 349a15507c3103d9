"""The operator sweep on a GPU: ``python -m tests.opinfo.gpu --out sweep.jsonl --seconds 540
--workers 14``.

PyTorch's OpInfo database (`tests/opinfo`) in float32 and bfloat16, forward and backward, compiled
by inductor and judged beside eager on the same device. Several processes share one GPU; each runs
row after row and is replaced where it dies, hangs, or meets an error of CUDA, after which its
context is of no use. One JSON line a row; rows that the file has are not run again, and rows come
in a seeded order, so that a run that ends early is a sample of all. A short table last.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A row that takes longer is stopped.
ROW_SECONDS = 150.0

#: Random numbers are compared with eager's, so they are eager's; recordings would hide nothing here
#: and take time.
OPTIONS = {"fallback_random": True, "recordings": False}


def serve(pipe: Any, device: str, samples: int, kinds: tuple[str, ...]) -> None:
    """A process's life: rows until there are no more."""
    import torch

    from tests.opinfo.row import DTYPES, Row

    torch.backends.cudnn.allow_tf32 = False
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())  # torch logs what its fakes refuse
    pipe.send(("ready", None))
    while (inputs := pipe.recv()) is not None:
        name, dtype = inputs
        try:
            row = Row(
                name, DTYPES[dtype], samples, lambda at: pipe.send(("at", at)), device, OPTIONS
            )
            pipe.send(("done", row.run(kinds)))
        except Exception:
            pipe.send(("broken", traceback.format_exc()))


@dataclass(eq=False)
class Worker:
    """Mutable. row: what it runs; at: the calls that it is compiling; until: when it is killed."""

    process: Any
    pipe: Any
    row: tuple[str, str] | None = None
    at: str = "starting"
    until: float = float("inf")
    ready: bool = False


class Sweep:
    """Mutable: rows to run, processes that run them. `take` is called with each result."""

    def __init__(self, rows: list[tuple[str, str]], chosen: argparse.Namespace, take: Any) -> None:
        self.waiting, self.chosen, self.take = rows[::-1], chosen, take
        self.context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.busy: list[Worker] = []

    def start(self) -> None:
        ours, theirs = self.context.Pipe()
        arguments = (
            theirs,
            self.chosen.device,
            self.chosen.samples,
            tuple(self.chosen.kinds.split(",")),
        )
        process = self.context.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        self.busy.append(Worker(process, ours))

    def stop(self, worker: Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        self.busy.remove(worker)

    def run(self, end: float) -> None:
        for _ in range(min(self.chosen.workers, len(self.waiting))):
            self.start()
        while self.busy and time.monotonic() < end:
            multiprocessing.connection.wait([worker.pipe for worker in self.busy], 1.0)
            for worker in list(self.busy):
                self.listen(worker)
        for worker in list(self.busy):
            self.stop(worker)

    def give(self, worker: Worker) -> None:
        worker.row = self.waiting.pop() if self.waiting else None
        worker.until = time.monotonic() + ROW_SECONDS
        worker.pipe.send(worker.row)
        if worker.row is None:
            self.stop(worker)

    def listen(self, worker: Worker) -> None:
        try:
            while worker.pipe.poll():
                kind, value = worker.pipe.recv()
                if kind == "at":
                    worker.at = value
                    continue
                if kind == "done":
                    self.take(value)
                elif kind == "broken":
                    self.take(lost(worker, "broken", value[-1500:]))
                spoilt = kind in ("done", "broken") and "CUDA error" in json.dumps(value)
                if spoilt:
                    self.replace(worker)
                    return
                self.give(worker)
                if worker.row is None:
                    return
        except EOFError:
            worker.process.join()
            self.take(lost(worker, "crashed", f"the process ended with {worker.process.exitcode}"))
            self.replace(worker)
            return
        if time.monotonic() > worker.until:
            self.take(lost(worker, "crashed", f"not ready after {ROW_SECONDS:.0f} s"))
            self.replace(worker)

    def replace(self, worker: Worker) -> None:
        self.stop(worker)
        if worker.row is not None and self.waiting:  # one that never became ready would fail again
            self.start()


def lost(worker: Worker, status: str, text: str) -> dict[str, Any]:
    op, dtype = worker.row or ("(no row)", "")
    return {"op": op, "dtype": dtype, "status": status, "cases": {}, "problems": [[status,
    worker.at[:400], text]],
            "problem_count": 1, "kernels": 0, "externs": {}, "eager": {}, "breaks": {},
            "seconds": 0.0}  # fmt: skip


def wanted(chosen: argparse.Namespace) -> list[tuple[str, str]]:
    from tests.opinfo.row import operators, rows
    from tests.opinfo.unusual import LEFT_OUT

    names, dtypes = set(filter(None, chosen.ops.split(","))), set(chosen.dtypes.split(","))
    eager = {name: op.name for name, op in operators().items()}
    actual = [
        (name, dtype)
        for name, dtype in rows("cpu" if chosen.device == "cpu" else "cuda")
        if dtype in dtypes
        and eager[name] not in LEFT_OUT
        and (not names or {name, eager[name]} & names)
    ]
    random.Random(0).shuffle(actual)
    return actual


def table(results: list[dict[str, Any]]) -> str:
    """Counts, then what is not as eager: a line each, the worst first."""
    lines = []
    for dtype in dict.fromkeys(row["dtype"] for row in results):
        rows = [row for row in results if row["dtype"] == dtype]
        counts = Counter(row["status"] for row in rows)
        calls = sum(sum(row["cases"].values()) for row in rows)
        kernels = sum(row["kernels"] for row in rows)
        atens = sum(1 for row in rows if row["externs"] or row["eager"])
        lines.append(
            f"{dtype}: {len(rows)} rows, {calls} calls, {dict(counts)}, {kernels} kernels, ATen in {atens}"
        )
    order = {"wrong": 0, "crashed": 1, "failed": 2, "broken": 3}
    for row in sorted(results, key=lambda row: (order.get(row["status"], 4), row["op"])):
        for kind, case, text in [] if row["status"] == "passed" else row["problems"][:1]:
            lines.append(
                f"{row['op']} {row['dtype']}: {kind}: {case[:50]}: {' '.join(text.split())[-150:]}"[
                    :260
                ]
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo.gpu")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument(
        "--samples", type=int, default=2, help="samples of a row at most, 0 for all"
    )
    parser.add_argument("--kinds", default="forward,backward")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--ops", default="", help="names, with commas between")
    parser.add_argument("--device", default="cuda")
    chosen = parser.parse_args()
    end = time.monotonic() + chosen.seconds
    out = chosen.out or Path(os.environ.get("OUT", ".")) / "opinfo_gpu.jsonl"
    results = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["op"], row["dtype"]) for row in results}
    rows = [row for row in wanted(chosen) if row not in done]
    print(f"{len(rows)} rows to run, {len(done)} done", flush=True)

    def take(result: dict[str, Any]) -> None:
        results.append(result)
        with out.open("a") as file:
            file.write(json.dumps(result) + "\n")

    sweep = Sweep(rows, chosen, take)
    sweep.run(end)
    print(f"{len(sweep.waiting)} rows not run\n{table(results)}")
    return 0 if {row["status"] for row in results} <= {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())
