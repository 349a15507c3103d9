"""MetaSchedule's search for one model with a stated budget: what it finds, and that its records are
enough afterwards.

``python -m benchmarks.tvm_tuning [--model resnet18_64] [--trials 512] [--records FOLDER]
[--again]``

In: a model of `benchmarks.models`, a budget (schedules tried in all, and for one operator), the
search's seed is 0. Out: milliseconds a call of eager, of TVM with our default schedules, and with
the records found; seconds of the search and of a later compile with the records alone; all in
``results/tvm/<model>.json``, beside the records that give them (folder ``results/tvm/records``, one
a target: processor and threads). What always holds: where records of this budget are there already,
nothing is searched, so that a second run shows what the committed records give; a search that was
interrupted goes on where it ended; a record is used where it was measured to be quicker than the
default schedule (``weighed.json`` beside the records; without that file, everywhere); each figure
is from a fresh process with empty caches; the programs of a process are timed in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import models, processes
from benchmarks.engines_by_hand import in_turns
from benchmarks.results import FOLDER, commit, machine

WHERE = FOLDER / "tvm"


def search(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fills the records. Says how long it took."""
    import tracer_core

    model = models.MODELS[name]
    program = model.program()
    with model.mode():
        start = time.perf_counter()
        program.call(tracer_core.compile(program.function, backend="tvm", options=options))
    return {"seconds": time.perf_counter() - start}


def compare(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Eager, default schedules, and what the records give, in one process."""
    import tracer_core
    from tracer_core.testing import error_ratio, tensors_in

    model = models.MODELS[name]
    program = model.program()
    empty = str(Path(options["records"]) / "none")
    fast = {
        "default schedules": tracer_core.compile(
            program.function, backend="tvm", options={**options, "records": empty}
        ),
        "records": tracer_core.compile(program.function, backend="tvm", options=options),
    }
    found: dict[str, Any] = {"first_call_s": {}, "error": {}}
    with model.mode():
        truth, plain = (
            tuple(tensors_in(value))
            for value in (models.in_float64(program).call(), program.call())
        )
        for column, function in fast.items():
            start = time.perf_counter()
            result = program.call(function)
            found["first_call_s"][column] = time.perf_counter() - start
            found["error"][column] = error_ratio(truth, plain, tuple(tensors_in(result)))
            found.setdefault("searched", []).extend(
                record.seconds
                for record in tracer_core.last_compile(function)
                if record.name == "tvm tune"
            )
        programs = {"eager": lambda: program.call()}
        programs |= {name: lambda one=one: program.call(one) for name, one in fast.items()}  # type: ignore[misc]
        found["rounds_ms"] = in_turns(programs, time.perf_counter)
    return found


@contextlib.contextmanager
def said(records: Path, trials: int) -> Iterator[None]:
    """While a search runs in another process, says twice a minute how far it is."""
    done = threading.Event()
    start = time.perf_counter()

    def watch() -> None:
        while not done.wait(30.0):
            tried = sum(
                len(path.read_bytes().splitlines())
                for path in records.glob("*/database_tuning_record.json")
            )
            print(
                f"{time.perf_counter() - start:5.0f} s: {tried} schedules recorded (budget"
                f" {trials})",
                flush=True,
            )

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.tvm_tuning", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", default="resnet18_64", choices=tuple(models.MODELS))
    parser.add_argument("--trials", type=int, default=512, help="schedules tried in all")
    parser.add_argument("--trials-per-operator", type=int, default=48)
    parser.add_argument(
        "--cost-model", default="random", choices=("xgb", "random"), help="xgb needs xgboost"
    )
    parser.add_argument("--records", type=Path, default=WHERE / "records")
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="seconds that the search may take"
    )
    parser.add_argument("--again", action="store_true", help="search although there are records")
    parser.add_argument("--do", choices=("search", "compare"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if the records are slower than eager, or were not enough."""
    given = _arguments(arguments)
    options: dict[str, Any] = {"records": str(given.records.resolve()), "freeze": True}
    budget = {
        "trials": given.trials,
        "trials_per_operator": given.trials_per_operator,
        "cost_model": given.cost_model,
    }
    if given.do:
        processes.answer(
            search(given.model, options | budget)
            if given.do == "search"
            else compare(given.model, options)
        )
        return 0
    child = ["--model", given.model, "--trials", str(given.trials), "--trials-per-operator",
    str(given.trials_per_operator),
             "--cost-model", given.cost_model, "--records", str(given.records)]  # fmt: skip
    path = WHERE / f"{given.model}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    threads = torch.get_num_threads()
    if (
        given.again
        or known.get("budget") != budget
        or known.get("threads") != threads
        or not given.records.exists()
    ):
        print(f"searching: {given.trials} schedules ...", flush=True)
        with said(given.records, given.trials):
            answer = processes.fresh(
                "benchmarks.tvm_tuning", [*child, "--do", "search"], limit=given.limit
            )
        known = {"budget": budget, "threads": threads, "search_s": answer["seconds"]}
    row = processes.fresh("benchmarks.tvm_tuning", [*child, "--do", "compare"], limit=600)
    best = {name: min(times) for name, times in row["rounds_ms"].items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = known | row | {"best_ms": best, "commit": commit(), "machine": machine()}
    path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"search {known['search_s']:.0f} s ({given.trials} schedules, seed 0); with the records a first call takes "
          f"{row['first_call_s']['records']:.1f} s")  # fmt: skip
    for name, milliseconds in best.items():
        print(
            f"{name:18} {milliseconds:8.2f} ms, {best['eager'] / milliseconds:.2f} times eager's"
            " speed"
        )
    return int(best["records"] > best["eager"] or bool(row["searched"]))


if __name__ == "__main__":
    raise SystemExit(main())
