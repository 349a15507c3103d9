"""Programs that are edited between two processes, and changed back: each process gets what eager mode
gives, whatever the earlier ones have left.

The programs, in both forms, stand in `kept_programs.txt`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.kept_runner import AFTER, BEFORE, programs

ROOT = Path(__file__).resolve().parents[2]
#: How many programs are found again, at least: what is not kept tests nothing.
FOUND = 170

pytestmark = pytest.mark.timeout(900)  # three processes: 25 s of processor time


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """The results of three processes, which run the programs as they are, edited, and as they were."""
    folder, results = tmp_path_factory.mktemp("kept"), []
    for seed, form in enumerate((BEFORE, AFTER, BEFORE)):
        done = subprocess.run(
            [sys.executable, "-m", "tests.core.kept_runner", str(folder), str(form)],
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


@pytest.mark.parametrize("name", programs())
def test_every_process_gets_what_eager_mode_gives(processes, name):
    for number, results in enumerate(processes):
        assert not results[name]["differences"], (number, results[name]["said"])


def test_programs_are_found_again(processes):
    first, _, last = processes
    assert not any(row["said"].startswith("hit") for row in first.values())
    found = [
        name for name, row in last.items() if row["said"].startswith("hit") and not row["captures"]
    ]
    assert len(found) >= FOUND
