"""A sample of CPython's own tests gives the same outcome compiled; all of them: ``nox -s
cpython``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cpython import page, results, suite
from tests.support.sweeps import sample

_SAMPLE = 25


@pytest.mark.skipif(not suite.is_installed(), reason=suite.MISSING)
def test_a_sample_is_equal(tmp_path):
    """Of the methods that are equal in the committed results, so many drawn by a hash."""
    files = json.loads(_committed().read_text())["files"]
    equal = [f"{file}.{name}" for file in files for name, outcome in files[file].items()
             if results.equal(outcome)]  # fmt: skip
    chosen, state = tmp_path / "methods.txt", tmp_path / "state.json"
    chosen.write_text("\n".join(sorted(sample(equal, _SAMPLE))))
    command = [sys.executable, "-m", "tests.cpython", "--methods", str(chosen), "--out", str(state)]
    run = subprocess.run(command, cwd=results.ROOT, capture_output=True, text=True, env=os.environ)
    assert run.returncode == 0, run.stdout + run.stderr
    assert sum(map(len, json.loads(state.read_text())["files"].values())) > _SAMPLE // 2


def _committed():
    """The results of this Python, or of one that has some."""
    path = results.path()
    return path if path.exists() else sorted(results.FOLDER.glob("python-*.json"))[0]


def test_page_is_made_from_the_results():
    assert page.PAGE.read_text() == page.page(page.load())
