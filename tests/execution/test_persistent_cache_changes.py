"""Programs that are edited between two processes, and changed back: each process gets what eager mode
gives, whatever the earlier ones have left.

The programs, in both forms, stand in `persistent_cache_programs.txt`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.execution.persistent_cache_runner import AFTER, BEFORE, programs

ROOT = Path(__file__).resolve().parents[2]
#: The share of the programs that are found again, at least: what is not stored tests nothing.
FOUND = 3 / 8

pytestmark = pytest.mark.timeout(900)  # three processes: 25 s of processor time


@pytest.fixture(scope="module")
def processes(request, tmp_path_factory):
    """The results of three processes, which run the chosen tests' programs as they are, edited, and as
    they were.
    """
    folder, results = tmp_path_factory.mktemp("stored"), []
    chosen = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in chosen if hasattr(item, "callspec")]
    for seed, form in enumerate((BEFORE, AFTER, BEFORE)):
        done = subprocess.run(
            [sys.executable, "-m", "tests.execution.persistent_cache_runner", str(folder), str(form), *(names or programs())],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "PYTHONHASHSEED": str(seed),
                "OMP_NUM_THREADS": "1",
                "TRACER_KEEP": "1",
                "TRACER_CHECK": "",
                "TRACER_CACHE_DIR": str(folder / "cache"),
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads((folder / "result.json").read_text()))
    return results


@pytest.mark.sweep(keep=120)
@pytest.mark.parametrize("name", programs())
def test_every_process_gets_what_eager_mode_gives(processes, name):
    for number, results in enumerate(processes):
        assert not results[name]["differences"], (number, results[name]["said"])


def test_programs_are_found_again(processes):
    first, _, last = processes
    assert not any(row["said"].startswith("hit") for row in first.values())
    actual = [
        name for name, row in last.items() if row["said"].startswith("hit") and not row["captures"]
    ]
    assert len(actual) >= FOUND * len(last)
