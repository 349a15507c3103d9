"""The five packages: their metadata, and wheels that hold everything and build alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "frontend-tracer": ("tracer-core", "tracer_core"),
    "inductor-backend": ("inductor-backend", "inductor_backend"),
    "cudagraphs-backend": ("cudagraphs-backend", "cudagraphs_backend"),
    "onnxrt-backend": ("onnxrt-backend", "onnxrt_backend"),
    "tvm-backend": ("tvm-backend", "tvm_backend"),
}

SHIPPED = (".py", ".h", ".typed", ".cpp", ".json")


def project(folder):
    return tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text())["project"]


def test_there_are_exactly_these_packages():
    assert {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")} == PACKAGES.keys()


@pytest.mark.parametrize("folder", PACKAGES)
def test_metadata(folder):
    distribution, module = PACKAGES[folder]
    metadata = project(folder)
    assert metadata["name"] == distribution
    assert metadata["requires-python"] == ">=3.11"
    assert metadata["license"] == "MIT"
    assert (ROOT / "packages" / folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    if folder != "frontend-tracer":
        entries = metadata["entry-points"]["tracer_core"]
        assert list(entries.values()) == [f"{module}.plugin"]
        assert "tracer-core==" + project("frontend-tracer")["version"] in metadata["dependencies"]


def test_all_versions_are_one():
    from tracer_core import __version__

    assert {project(folder)["version"] for folder in PACKAGES} == {__version__}


@pytest.mark.parametrize("folder", PACKAGES)
def test_the_wheel_holds_every_source_file(folder, tmp_path):
    _, module = PACKAGES[folder]
    source = tmp_path / folder
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "packages" / folder, source, ignore=ignored)
    expected = {
        str(path.relative_to(source / "src"))
        for path in (source / "src").rglob("*")
        if path.suffix in SHIPPED or path.name == "py.typed"
    }
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "-w", str(tmp_path), str(source)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert expected - held == set()
    assert f"{module}/py.typed" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_readme_commands_come_first():
    lines = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.strip()]
    commands = [line.partition("#")[0].strip() for line in lines[1:3]]
    assert commands == [f"python -m pip install nox && python -m nox -s {name}" for name in ("demo", "tests")]
