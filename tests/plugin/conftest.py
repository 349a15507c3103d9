"""An environment of its own to install plug-ins into, and to take them out of again."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Environment:
    """A virtual environment that also sees what the tests run with. python: its interpreter."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        (actual,) = (self.folder / "lib").glob("python*/site-packages")
        return actual

    def pip(self, *arguments: str) -> None:
        """Runs pip for this environment."""
        command = [sys.executable, "-m", "pip", "--python", self.python, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, folder: Path) -> None:
        """``pip install`` of a source folder (of a copy: building leaves files behind)."""
        copied = self.folder / "sources" / folder.name
        shutil.copytree(folder, copied, ignore=shutil.ignore_patterns("build", "*.egg-info"))
        self.pip("install", "--no-deps", "--no-build-isolation", str(copied))
        shutil.rmtree(copied)

    def run(self, program: str) -> Any:
        """Runs a program that sets `result`; returns it (through JSON)."""
        (result,) = self.run_in_turn(program)
        return result

    def run_in_turn(self, *programs: str) -> list[Any]:
        """Runs programs in one process: importing torch costs more than most of them. Each sets
        `result`; returns all.
        """
        text = "import json\nresults = []\n"
        for program in programs:
            text += textwrap.dedent(program) + "\nresults.append(result)\n"
        text += "print('RESULT', json.dumps(results))\n"
        done = subprocess.run(
            [self.python, "-c", text],
            capture_output=True,
            text=True,
            timeout=120,
            env=dict(os.environ),
        )
        assert done.returncode == 0, done.stderr
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        return json.loads(line.removeprefix("RESULT "))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A fresh environment without any plug-in of the test's own."""
    folder = tmp_path / "env"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120
    )
    result = Environment(folder)
    seen = {
        sysconfig.get_paths()["purelib"],
        sysconfig.get_paths()["platlib"],
        *site.getsitepackages(),
    }
    lines = [f"import site; site.addsitedir({path!r})" for path in sorted(seen)]
    (result.site_packages / "outer.pth").write_text("\n".join(lines) + "\n")
    return result


def write_distribution(
    environment: Environment, distribution: str, version: str, entry: str, source: str
) -> None:
    """Puts a one-module plug-in into the environment, as pip would leave it."""
    module = distribution.replace("-", "_")
    (environment.site_packages / f"{module}.py").write_text(textwrap.dedent(source))
    info = environment.site_packages / f"{module}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text(f"[tracer_core]\n{entry} = {module}\n")
