"""``python -m tests.opinfo --workers 16 --out sweep.jsonl [--ops add,sub] [--dtypes float32]
[--samples 24] [--shard 0/4] [--rows file]``.

In: the command line. Out: one JSON line a row (operator, dtype), and a summary. What always holds:
a row runs in a process of its own, which is killed when it takes too long; rows that the file has
are not run again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 400.0


@dataclass
class Worker:
    """Mutable. at: the calls that it is compiling; until: when it is killed."""

    row: tuple[str, str]
    process: Any
    pipe: Any
    until: float
    at: str = "starting"


def serve(pipe: Any, name: str, dtype: str, samples: int, triton: bool) -> None:
    """A process's life: one row."""
    from tests.opinfo.row import DTYPES, Row

    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stderr.fileno())  # torch logs what its fakes refuse
    row = Row(name, DTYPES[dtype], samples, lambda at: pipe.send(("at", at)), triton=triton)
    try:
        pipe.send(("done", row.run()))
    except Exception:
        pipe.send(("broken", traceback.format_exc()))


def sweep(rows: list[tuple[str, str]], workers: int, samples: int, take: Any, triton: bool) -> None:
    """Runs the rows, `workers` at a time; take: called with each row's result."""
    # Forked, not spawned: importing torch's database takes longer than most rows. Nothing has run
    # here yet.
    context = multiprocessing.get_context("fork")
    waiting, busy = rows[::-1], []
    while waiting or busy:
        while waiting and len(busy) < workers:
            row = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=serve, args=(theirs, *row, samples, triton), daemon=True
            )
            process.start()
            theirs.close()
            busy.append(Worker(row, process, ours, time.monotonic() + SECONDS))
        multiprocessing.connection.wait([worker.pipe for worker in busy], 1.0)
        for worker in list(busy):
            result = listen(worker)
            if result is not None:
                worker.process.kill()
                worker.process.join()
                worker.pipe.close()
                busy.remove(worker)
                take(result)


def listen(worker: Worker) -> dict[str, Any] | None:
    """The row's result, once there is one."""
    try:
        while worker.pipe.poll():
            kind, value = worker.pipe.recv()
            if kind == "done":
                return value
            if kind == "broken":  # the sweep's own fault
                return lost(worker, "broken", value[-1500:])
            worker.at = value
    except EOFError:
        worker.process.join()
        return lost(worker, "crashed", f"the process ended with {worker.process.exitcode}")
    if time.monotonic() > worker.until:
        return lost(worker, "crashed", f"not ready after {SECONDS:.0f} s")
    return None


def lost(worker: Worker, status: str, text: str) -> dict[str, Any]:
    op, dtype = worker.row
    problems = [[status, worker.at[:400], text]]
    return {"op": op, "dtype": dtype, "status": status, "cases": {}, "problems": problems,
    "problem_count": 1,
            "kernels": 0, "externs": {}, "eager": {}, "breaks": {}, "seconds": 0.0,
            "compile_seconds": 0.0}  # fmt: skip


def chosen(options: argparse.Namespace) -> list[tuple[str, str]]:
    from tests.opinfo.row import operators, rows
    from tests.opinfo.unusual import LEFT_OUT

    names = set(options.ops.split(",")) if options.ops else None
    dtypes = set(options.dtypes.split(",")) if options.dtypes else None
    eager = {name: op.name for name, op in operators().items()}
    actual = [
        (name, dtype)
        for name, dtype in rows()
        if (names is None or name in names or eager[name] in names)
        and (dtypes is None or dtype in dtypes)
        and eager[name] not in LEFT_OUT
    ]
    if options.rows is not None:
        actual = listed(options.rows, actual)
    number, count = map(int, options.shard.split("/"))
    return actual[number::count]


def listed(file: Path, known: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows of a file: ``operator,dtype`` a line, # before remarks. Raises ValueError for one
    that there is not.
    """
    lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    wanted = [tuple(part.strip() for part in line.split(",")) for line in lines if line]
    unknown = [row for row in wanted if row not in set(known)]
    if unknown:
        raise ValueError(f"{file}: no such rows: {unknown}")
    return [row for row in known if row in set(wanted)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.opinfo")
    parser.add_argument(
        "--out", type=Path, default=None, help="JSON lines; rows that it has are not run again"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--samples", type=int, default=24, help="samples of a row at most, 0 for all"
    )
    parser.add_argument("--ops", default="", help="names, with commas between")
    parser.add_argument("--dtypes", default="")
    parser.add_argument(
        "--rows", type=Path, default=None, help="a file of rows to run: operator,dtype a line"
    )
    parser.add_argument(
        "--triton",
        action="store_true",
        help="Triton kernels, run by its interpreter, in place of C++",
    )
    parser.add_argument("--shard", default="0/1", help="this one of so many")
    options = parser.parse_args()
    if options.triton:
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported
    from tests.opinfo.page import machine

    todo, counts = chosen(options), Counter()
    done = set()
    if options.out is not None and options.out.exists():
        for line in options.out.read_text().splitlines():
            row = json.loads(line)
            done.add((row["op"], row["dtype"]))
            counts[row["status"]] += 1
    todo = [row for row in todo if row not in done]
    print(f"{len(todo)} rows to run, {len(done)} done", flush=True)
    start, here = time.monotonic(), machine()

    def take(result: dict[str, Any]) -> None:
        counts[result["status"]] += 1
        result["machine"] = here
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
        if result["status"] != "passed":
            print(
                f"{result['op']} {result['dtype']}: {result['status']} ({result['problem_count']})",
                flush=True,
            )
            for kind, case, text in result["problems"][:3]:
                print(
                    f"    {kind}: {case}: {text[-1200:] if kind == 'broken' else text[:300]}",
                    flush=True,
                )

    sweep(todo, options.workers, options.samples, take, options.triton)
    print(f"{dict(counts)} in {time.monotonic() - start:.0f} s")
    return 0 if set(counts) <= {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())
