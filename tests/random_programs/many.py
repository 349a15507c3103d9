"""``python -m tests.random_programs --count N --start-seed S --jobs J --out file.json``: many
programs at once.

In: how many programs, from which seed, in how many processes. Out: a summary on stdout and a state
file (JSON): seeds done, mismatches with their minimised programs, coverage. What always holds:
seeds that the state file has are not run again, so that an interrupted run goes on where it was; a
process that hangs or dies is reported with its seed (`workers`).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.random_programs.workers import Crew, Plan

_BATCH = 25
_WRITE_EVERY = 15.0


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    out = Path(options.out)
    state: dict[str, Any] = {"done": {}, "failures": {}, "coverage": {}}
    if out.exists() and not options.fresh:
        state = json.loads(out.read_text())
    wanted = [
        s
        for s in range(options.start_seed, options.start_seed + options.count)
        if str(s) not in state["done"]
    ]
    batches = [wanted[i : i + _BATCH] for i in range(0, len(wanted), _BATCH)]
    os.environ.update(TRACER_STRICT="1", OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    record = Record(state, out)
    plan = Plan(options.seconds, options.minimise, options.batches_a_process)
    try:
        Crew(batches, options.jobs, plan, record.take).run()
    finally:
        record.write()
    return _report(state, out, record.started, options)


class Record:
    """Mutable: what is known of the seeds, written to its file now and then."""

    def __init__(self, state: dict[str, Any], out: Path) -> None:
        self.state, self.out = state, out
        self.started = self.written = time.monotonic()

    def take(self, news: dict[str, Any]) -> None:
        from tests.random_programs import coverage

        self.state["done"].update(news["done"])
        for seed, status in news["done"].items():
            if status in ("same", "invalid"):
                self.state["failures"].pop(seed, None)
        self.state["failures"].update(news["failures"])
        for seed, failure in news["failures"].items():
            print(
                f"seed {seed}: {failure['status']}: {failure['where'][:200]}",
                file=sys.stderr,
                flush=True,
            )
        self.state["raised"] = self.state.get("raised", 0) + news["raised"]
        coverage.merge(self.state["coverage"], news["coverage"])
        if time.monotonic() - self.written > _WRITE_EVERY:
            self.write()

    def write(self) -> None:
        scratch = self.out.with_suffix(".part")
        scratch.write_text(json.dumps(self.state))
        scratch.replace(self.out)
        self.written = time.monotonic()
        told = f"{len(self.state['done'])} programs, {len(self.state['failures'])} failures"
        print(f"{told}, {self.written - self.started:.0f} s", file=sys.stderr, flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", default="random_programs.json", help="state file")
    parser.add_argument("--fresh", action="store_true", help="ignore an existing state file")
    parser.add_argument(
        "--minimise",
        type=float,
        default=20.0,
        help="seconds a failing program is made smaller; 0: not",
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="time limit of one program")
    parser.add_argument("--batches-a-process", type=int, default=8)
    parser.add_argument("--show", type=int, help="print the program of this seed and run it")
    options = parser.parse_args(arguments)
    if options.show is not None:
        raise SystemExit(_show(options))
    return options


def _show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TRACER_STRICT", "1")
    from tests.random_programs.minimise import alike, minimise
    from tests.random_programs.run import run
    from tests.random_programs.seeds import generate

    program = generate(options.show)
    result = run(program, options.seconds)
    if result.status in ("mismatch", "crash") and options.minimise:
        program = minimise(program, lambda p: alike(run(p, 3.0), result), options.minimise)
        result = run(program, options.seconds)
    print(program)
    print(result)
    return int(result.status not in ("same", "invalid"))


def _report(state: dict[str, Any], out: Path, started: float, options: argparse.Namespace) -> int:
    from tests.random_programs import coverage

    counts = collections.Counter(state["done"].values())
    for seed, failure in sorted(state["failures"].items(), key=lambda pair: int(pair[0])):
        print(f"== seed {seed}: {failure['status']}: {failure['where'][:300]}")
        print(failure["program"])
        for is_call, text in failure["steps"]:
            print(f"# {'call ' + failure['target'] if is_call else 'do'}: {text}")
    seeds = sorted(map(int, state["done"]))
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    print(f"{len(seeds)} programs (seeds {seeds[0] if seeds else '-'}..{seeds[-1] if seeds else '-'}): {told}; "
          f"{state.get('raised', 0)} raised; {time.monotonic() - started:.0f} s; state in {out}")  # fmt: skip
    print(coverage.report(state["coverage"]))
    return int(bool(state["failures"]))
