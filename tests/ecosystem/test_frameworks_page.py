"""The programs of docs/frameworks.md run as a reader runs them, and compile what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # imports transformers, starts two processes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
PROGRAMS = dict(
    re.findall(r"^```python (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
)


def run(folder: Path, name: str, *launcher: str) -> str:
    file = folder / "program.py"
    file.write_text(PROGRAMS[name])
    command = [sys.executable, *launcher, str(file)]
    env = {**os.environ, "TRACER_KEEP": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes(tmp_path):
    printed = run(
        tmp_path, "file=train_ddp.py", "-m", "torch.distributed.run", "--nproc-per-node=2"
    )
    assert "learned: True - 1 graph compiled" in printed and "2 graph breaks so far" in printed


def test_trainer(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    assert re.search(r"^[1-9] graphs? compiled .* 0 graph breaks", run(tmp_path, "trainer"), re.M)


def test_lightning(tmp_path):
    pytest.importorskip("lightning")
    assert re.search(r"^1 graph compiled .* 0 graph breaks", run(tmp_path, "lightning"), re.M)


def test_every_program_of_the_page_is_run():
    text = PAGE.read_text()
    assert sorted(PROGRAMS) == ["file=train_ddp.py", "lightning", "trainer"]
    assert text.count("```python") == len(PROGRAMS)
