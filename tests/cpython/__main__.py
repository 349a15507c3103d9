"""``python -m tests.cpython [--files test_list,test_dict] [--methods FILE] [--jobs 8]``: CPython's
own tests, eagerly and compiled.

In: the command line. Out: a state file (JSON, ``benchmarks/results/cpython/python-3.11.json``)
with the outcome of each method, and the methods whose two outcomes differ. What always holds:
methods that the state file has are not run again, unless ``--again`` says so, so that an
interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_WRITE_EVERY = 15.0
#: What the processes of a run have in common.
_ENVIRONMENT = {"TRACER_STRICT": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def main() -> int:
    if any(os.environ.get(name) != value for name, value in _ENVIRONMENT.items()):
        os.environ.update(_ENVIRONMENT)  # a seed of hashes is read when Python starts
        os.execv(sys.executable, [sys.executable, "-m", "tests.cpython", *sys.argv[1:]])
    from tests.cpython import results, suite

    options = _options()
    if not suite.is_installed():
        print(suite.MISSING, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="cpython-cache") as cache:
        os.environ["TRACER_CACHE_DIR"] = cache
        return _run(options, results.State(options.out))


def _options() -> argparse.Namespace:
    from tests.cpython import results

    parser = argparse.ArgumentParser(prog="python -m tests.cpython", description=__doc__)
    parser.add_argument("--out", type=Path, default=results.path(), help="state file")
    parser.add_argument("--files", default="", help="names, with commas between")
    parser.add_argument(
        "--methods", type=Path, help="a file of methods: test_list.ListTest.test_basic a line"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of one run")
    parser.add_argument(
        "--again",
        choices=("no", "different", "all"),
        default="no",
        help="which of the methods that the state file has are run again",
    )
    return parser.parse_args()


def _run(options: argparse.Namespace, state: Any) -> int:
    from tests.cpython import suite, sweep

    sweep.warm_up()
    start = written = time.monotonic()
    wanted = _wanted(options.methods)
    files = options.files.split(",") if options.files else suite.FILES
    tasks, different = [], 0
    for file in files:
        if not suite.has(file) or (wanted and file not in wanted):
            continue
        known = sweep.methods(file)
        names = [name for name in known if not wanted or name in wanted[file]]
        if not wanted:
            state.keep_only(file, known)
        tasks.append(sweep.Task(file, tuple(state.to_do(file, names, options.again))))
    count = sum(len(task.names) for task in tasks)
    print(f"{count} methods to run, {state.count()} done", flush=True)

    def take(file: str, name: str, row: dict[str, Any]) -> None:
        nonlocal written, different
        if not state.add(file, name, row):
            different += 1
            print(f"{file}.{name}:\n    native   {row['native']}\n    compiled {row['compiled']}",
                  flush=True)  # fmt: skip
        if time.monotonic() - written > _WRITE_EVERY:
            state.write()
            written = time.monotonic()

    try:
        sweep.sweep(tasks, options.jobs, options.seconds, take)
    finally:
        state.write()
    print(f"{count} methods, {different} different, {time.monotonic() - start:.0f} s")
    return int(different > 0)


def _wanted(file: Path | None) -> dict[str, set[str]]:
    """The methods that a file lists, by file of the suite: everything if empty."""
    actual: dict[str, set[str]] = {}
    for line in file.read_text().split() if file is not None else ():
        name, _, method = line.partition(".")
        actual.setdefault(name, set()).add(method)
    return actual


if __name__ == "__main__":
    sys.exit(main())
