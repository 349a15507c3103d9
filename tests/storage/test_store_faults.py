"""A sample of the faults of tests/faults: killed processes, damaged files, many processes, full disks,
other owners, planted code, hostile names.

Each process compiles the same functions and compares with eager mode; whatever was done to the store
before, it must end well, with right answers and without the code that was planted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
def test_a_sample_of_faults(tmp_path):
    """In a process of its own: it forks, and this one may have threads."""
    state = tmp_path / "state.jsonl"
    words = ["-m", "tests.faults", "--sample", "--seed", "1", "--state", str(state)]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-3000:]
    rows = [json.loads(line) for line in state.read_text().splitlines()]
    assert len({row["kind"] for row in rows}) == (14 if os.geteuid() == 0 else 7)


@pytest.mark.full
def test_dropped_functions_leave_nothing(tmp_path):
    out = tmp_path / "rows.json"
    words = ["-m", "tests.faults.dropped", "--count", "400", "--own", "40", "--out", str(out)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, timeout=280)
    rows = json.loads(out.read_text())["rows"]
    half, end = rows[9], rows[-2]
    assert end["functions"] == 400 and half["functions"] == 200
    for what in ("libraries", "descriptors", "threads"):
        assert end[what] <= rows[0][what] + 1, (what, end[what])
    assert end["mappings"] < half["mappings"] + 20
    assert end["rss_mb"] < half["rss_mb"] + 8
