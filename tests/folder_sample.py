"""A few tests of every folder of tests/, for machines on which all of them take too long:
``python -m tests.folder_sample``, which ``nox -s tests-aarch64`` runs on an emulated processor.

Out: a row of benchmarks/results/<machine>/sample.json for each folder: versions, commit, counts, and the
names of what failed. Each folder has a process of its own. A row is written when its folder ends, so a run
that was stopped goes on where it was; a folder whose row is of another commit runs again. Folders may
be named; then only they run, again. The tests are chosen by a hash of their names, of as many files as
possible (``--count``); those that a folder has not begun after ``--limit`` seconds are counted as not run.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import commit, machine
from tests.support import sweeps, torch_server
from tests.torch_versions import counted

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / platform.machine() / "sample.json"

#: The tests of ``nox -s tests``; a test may take long where a processor is emulated.
PYTEST = (
    "-q", "-p", "tests.folder_sample", "-m", "not full and not gpu and not slow", "-o", "timeout=1200",
)  # fmt: skip

#: Files of tests of code that depends on the processor, which have rows of their own and more tests.
NEAR_THE_PROCESSOR = """
guards/test_constant_check.py guards/test_dict_counters.py guards/test_fast_path_guards.py
guards/test_learned_tensors.py inductor/test_attention.py inductor/test_conv_backward.py
inductor/test_cpu_level.py inductor/test_element_types.py inductor/test_extreme_values.py
inductor/test_freeze.py inductor/test_kernels.py inductor/test_native_library.py
inductor/test_random.py inductor/test_recurrent.py inductor/test_winograd.py
inductor/test_winograd_planes.py inductor_runtime/test_prelude.py inductor_runtime/test_special.py
triton_kernels/test_launch_parameters.py
""".split()
#: Times as many tests as of a folder.
_MORE = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample-count", type=int, default=8, help="tests of the folder")
    parser.addoption("--sample-limit", type=int, default=600, help="seconds in which tests begin")


def files(folder: Path, count: int) -> list[Path]:
    """Returns `count` test files of the folder, chosen by a hash of their names; a file is itself."""
    if folder.is_file():
        return [folder]
    paths = {str(path.relative_to(ROOT)): path for path in folder.rglob("test_*.py")}
    return [paths[name] for name in sorted(sweeps.sample(paths, count))]


def sampled(items: Sequence[pytest.Item], count: int) -> list[pytest.Item]:
    """Returns `count` of the tests: one of each file, then a second one, until there are enough."""
    of_file: dict[Path, Iterator[int]] = collections.defaultdict(itertools.count)
    ordered = sorted(items, key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
    turns = {item.nodeid: next(of_file[item.path]) for item in ordered}
    return sorted(ordered, key=lambda item: turns[item.nodeid])[:count]


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = sampled(items, config.getoption("--sample-count"))
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_BEGUN] = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() - item.config.stash[_BEGUN] > item.config.getoption("--sample-limit"):
        pytest.skip(_TOO_LATE)


_BEGUN = pytest.StashKey[float]()
_TOO_LATE = "the folder's time is over"
#: Exit statuses of a process that has written its report.
_REPORTED = (
    pytest.ExitCode.OK,
    pytest.ExitCode.TESTS_FAILED,
    pytest.ExitCode.NO_TESTS_COLLECTED,
)


def run(arguments: Sequence[str]) -> int:
    """Returns the exit status of pytest in a process of its own, and prints what it said."""
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = torch_server.run(["-c", program, *arguments], cwd=ROOT, timeout=3600)
    print(done.stdout[-4000:], done.stderr[-1000:], flush=True)
    return done.returncode


def read() -> dict[str, Any]:
    """Returns the rows that are there, by folder."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders", nargs="*", help="of tests/, or files; default: all without a row"
    )
    parser.add_argument("--count", type=int, default=8, help="tests of each folder")
    parser.add_argument("--limit", type=int, default=600, help="seconds of each folder")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as tests/conftest.py, but before torch
    rows = read()
    here, now = machine(), commit()
    tests = ROOT / "tests"
    every = sorted(
        {path.parent.relative_to(tests).parts[0] for path in tests.glob("*/**/test_*.py")}
    )
    named = options.folders or [
        name for name in (*every, *NEAR_THE_PROCESSOR) if rows.get(name, {}).get("commit") != now
    ]
    failed = False
    for name in named:
        begun = time.time()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            count = options.count * (_MORE if name in NEAR_THE_PROCESSOR else 1)
            selection = [f"--sample-count={count}", f"--sample-limit={options.limit}"]
            # twice as many files, because all tests of a file may be marked
            selection += map(str, files(tests / name, 2 * options.count))
            code = run((*PYTEST, f"--junitxml={report}", *selection))
            if code in _REPORTED:
                row = counted(report)
                late = report.read_text().count(f'message="{_TOO_LATE}"')
                row |= {"skipped": row["skipped"] - late, "not_run": late}
            else:
                ended = f"pytest: exit status {code}"
                row = {"passed": 0, "failed": 1, "skipped": 0, "failures": [ended]}
        rows = read()  # another process may run other folders
        rows[name] = {
            **here["versions"], "python": here["python"], "commit": now,
            "seconds": round(time.time() - begun), **row,
        }  # fmt: skip
        failed = failed or bool(row["failed"])
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        print(
            name,
            {kind: row.get(kind, 0) for kind in ("passed", "failed", "skipped", "not_run")},
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
