"""docs/writing_a_backend.md is what happens: its files are written and installed, its programs run,
its backend conforms.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.plugin.conftest import REPOSITORY, environment  # noqa: F401  (a fixture)

PAGE = (REPOSITORY / "docs" / "writing_a_backend.md").read_text()

BLOCK = re.compile(r"^```(\w+) (?:file=(\S+)|(run))\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.full
def test_the_page(environment, tmp_path):  # noqa: F811
    project = tmp_path / "addcmul-backend"
    programs = []
    for _, name, _, text in BLOCK.findall(PAGE):
        if name:
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        else:
            programs.append(text)
    assert len(programs) == 2 and (project / "pyproject.toml").exists()
    environment.install(project)
    for program in programs:
        assert environment.run(program + "\nresult = 'done'\n") == "done"
    for backend in ("addcmul", "addcmul_backend.numpy_engine:BACKEND"):
        done = subprocess.run(
            [environment.python, "-m", "tracer_core.testing.conformance", "--backend", backend,
            "--sample", "30", "--quiet"],
            capture_output=True, text=True, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_block_is_executed():
    fences = re.findall(r"^```\w+.*$", PAGE, re.MULTILINE)
    assert len(fences) == len(BLOCK.findall(PAGE))
