"""``python -m tests.operator_programs --count N --start-seed S --jobs J --out file.json``: many
programs at once.

In: how many programs, from which seed, in how many processes. Out: a summary on stdout and a state
file (JSON): seeds done, mismatches with their minimised programs, counts. What always holds: seeds
that the state file has are not run again; a process that hangs or dies is reported with its seed
(`tests.random_programs.workers`).
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.random_programs.many import Record, parser
from tests.random_programs.workers import GENERATING, TOGETHER, Crew, Plan, batches_of, news


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    record = Record(Path(options.out), options.fresh)
    os.environ.update(TRACER_STRICT="1", OMP_NUM_THREADS="1")
    # Kernels of random programs are of no use to anybody later: each process has a folder of its own.
    kernels = tempfile.mkdtemp(prefix="operator-programs-")
    os.environ["TRACER_CACHE_DIR"] = kernels
    from tests.operator_programs.run import blocks

    wanted = [
        [seed for seed in block if str(seed) not in record.state["done"]]
        for block in blocks(options.start_seed, options.count)
    ]
    until = record.started + options.limit

    def take(messages: dict[str, Any]) -> None:
        record.take(messages)
        if time.monotonic() > until:
            crew.todo.clear()

    plan = Plan(options.seconds, options.minimise, options.batches_a_process)
    serve = functools.partial(_serve, options.backend, options.device)
    crew = Crew([block for block in wanted if block], options.jobs, plan, take, serve)
    try:
        crew.run()
    finally:
        record.write()
        shutil.rmtree(kernels, ignore_errors=True)
    return _report(record)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    known = parser("operator_programs", __doc__, 30.0, 240.0, 25)
    known.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which no block is begun"
    )
    known.add_argument("--backend", help="of all programs, in place of the seeds' own")
    known.add_argument("--device", default="cpu", help="cpu or cuda")
    options = known.parse_args(arguments)
    if options.show is not None:
        raise SystemExit(_show(options))
    return options


def _show(options: argparse.Namespace) -> int:
    os.environ.setdefault("TRACER_STRICT", "1")
    from tests.operator_programs.program import changed, generate
    from tests.operator_programs.run import run

    program = changed(generate(options.show), options.backend, options.device)
    print(program)
    result = run(program, options.seconds)
    if result.status in ("mismatch", "crash") and options.minimise:
        program = _smaller(program, result, options.minimise)
        result = run(program, options.seconds)
        print(program)
    print(result)
    return int(result.status not in ("same", "invalid"))


def _smaller(program: Any, result: Any, seconds: float) -> Any:
    from tests.operator_programs.program import later_edits, result_edits
    from tests.operator_programs.run import run
    from tests.random_programs.minimise import alike, minimise, statement_edits, step_edits

    edits = (step_edits, later_edits, result_edits, statement_edits)
    return minimise(program, lambda p: alike(run(p, 20.0), result), seconds, edits)


def _serve(backend: str | None, device: str, pipe: Any, plan: Plan, trace: str) -> None:
    """A worker's life: blocks come, news goes."""
    # CUDA maps more memory than a process may take here.
    for _, seeds, eagerly in batches_of(pipe, trace, limited=device == "cpu"):
        counts: collections.Counter[str] = collections.Counter()
        _block(pipe.send, plan, seeds, eagerly, counts, backend, device)
        messages = {"done": {}, "failures": {}, "coverage": {"counts": counts}, "raised": 0}
        pipe.send(("end", messages))


def _block(
    send: Any,
    plan: Plan,
    seeds: list[int],
    eagerly: bool,
    counts: collections.Counter[str],
    backend: str | None,
    device: str,
) -> None:
    from tests.operator_programs.program import changed, generate
    from tests.operator_programs.run import run, run_block

    programs = []
    for seed in seeds:
        send(("at", (seed, GENERATING, plan.seconds)))
        programs.append(changed(generate(seed), backend, device))
    if eagerly:  # eager survived generating it: compiled, it is to blame
        return
    send(("at", (TOGETHER, "running it", 4 * plan.seconds)))
    results = run_block(programs, plan.seconds, counts)
    for program, result in zip(programs, results, strict=True):
        counts[f"mode: {program.mode}"] += 1
        messages = dataclasses.replace(program, source=str(program))
        send(("seed", news(program.seed, result.status, result.where, messages, result.raised)))
        if plan.minimise and result.status in ("mismatch", "crash"):
            send(("at", (program.seed, "making it smaller", 2 * plan.minimise)))
            small = _smaller(program, result, plan.minimise)
            where = run(small, plan.seconds).where or result.where
            messages = dataclasses.replace(small, source=str(small))
            send(("seed", news(program.seed, result.status, where, messages)))
        send(("next", None))


def _report(record: Record) -> int:
    for seed, failure in sorted(record.state["failures"].items(), key=lambda pair: int(pair[0])):
        print(f"== seed {seed}: {failure['status']}: {failure['where'][:600]}")
        print(failure["program"])
    messages = record.state["coverage"].get("counts", {})
    for name, number in sorted(messages.items(), key=lambda pair: -pair[1]):
        print(f"{number:8} {name}")
    record.print_totals()
    return int(bool(record.state["failures"]))
