"""What is installed between two processes: entries are found again unless a distribution differs that
they depend on, which is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # nine processes

PROGRAM = """
import torch, tracer_core
from scaling import scale

@tracer_core.compile
def step(x):
    return scale(x).sin()

x = torch.arange(4.0)
torch.testing.assert_close(step(x), scale(x).sin())
print(*(row.text for row in tracer_core.last_compile(step) if row.name == "persistent_cache"))
"""


class Site:
    """A folder of installed packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        (folder / "program.py").write_text(PROGRAM)

    def install(self, name: str, version: str, requires: str = "", **modules: str) -> None:
        for module, text in modules.items():
            (self.folder / f"{module}.py").write_text(text)
        for old in self.folder.glob(f"{name}-*.dist-info"):
            old.rename(self.folder / f"{name}-{version}.dist-info")
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requires}"] if requires else []
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        if modules:
            (info / "top_level.txt").write_text("\n".join(modules))

    def run(self) -> str:
        """Returns what a process says of entries of earlier ones."""
        path = os.pathsep.join([str(self.folder), *sys.path])
        settings = {
            "PYTHONPATH": path, "TRACER_CACHE_DIR": str(self.folder / "cache"),
            "TRACER_KEEP": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, str(self.folder / "program.py")],
            env={**os.environ, **settings}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    result = Site(tmp_path_factory.mktemp("installed") / "site")
    # the distribution is not named like its module
    result.install(
        "rescaling", "1.0", "sums>=1",
        scaling="import sums\ndef scale(x):\n    return x * sums.total(2)\n",
    )  # fmt: skip
    result.install("sums", "1.0", sums="total = sum.__class__ and (lambda n: n + 1)\n")
    assert "nothing was stored" in result.run()
    return result


def test_something_else_is_installed(site: Site) -> None:
    site.install("unrelated", "1.0", unrelated="")
    assert site.run() == "hit: 1 entries of an earlier process"
    site.install("unrelated", "2.0", unrelated="")
    assert site.run() == "hit: 1 entries of an earlier process"


def test_the_package_itself_is_another_version(site: Site) -> None:
    site.install("rescaling", "1.1", "sums>=1")
    assert "rescaling was 1.0 and is 1.1" in site.run()
    assert site.run().startswith("hit: 1 ")
    site.install("rescaling", "1.0", "sums>=1")
    assert site.run().startswith("hit: 1 ")


def test_what_the_package_requires_is_another_version(site: Site) -> None:
    site.install("sums", "1.2")
    assert "sums was 1.0 and is 1.2" in site.run()
    site.install("sums", "1.0")
    assert site.run().startswith("hit: 1 ")
