"""Programs in processes of their own, which share a cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(tmp_path):
    """start(folder, text, **environment): runs a program in a file; returns its lines."""

    def run(folder, text, **environment):
        path = tmp_path / folder / "program.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            timeout=280,
            cwd=ROOT,
            env={
                **os.environ, "TRACER_KEEP": "1", "TRACER_CHECK": "",
                "TRACER_CACHE_DIR": str(tmp_path / "cache"), **environment,
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    return run
