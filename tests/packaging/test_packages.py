"""The five packages: their metadata, and wheels that hold everything and build alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tracer_core.torch_private import releases

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "frontend-tracer": ("tracer-core", "tracer_core"),
    "inductor-backend": ("inductor-backend", "inductor_backend"),
    "cudagraphs-backend": ("cudagraphs-backend", "cudagraphs_backend"),
    "onnxrt-backend": ("onnxrt-backend", "onnxrt_backend"),
    "tvm-backend": ("tvm-backend", "tvm_backend"),
}

BACKENDS = [folder for folder in PACKAGES if folder != "frontend-tracer"]

SHIPPED = (".py", ".h", ".typed", ".cpp", ".json")


def project(folder):
    return tomllib.loads((ROOT / "packages" / folder / "pyproject.toml").read_text())["project"]


def compatible(distribution):
    """What a package asks of another: any release with the same first two numbers."""
    major, minor, _ = project("frontend-tracer")["version"].split(".")
    return Requirement(f"{distribution}>={major}.{minor},<{major}.{int(minor) + 1}")


def test_there_are_exactly_these_packages():
    assert {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")} == PACKAGES.keys()


@pytest.mark.parametrize("folder", PACKAGES)
def test_metadata(folder):
    distribution, module = PACKAGES[folder]
    metadata = project(folder)
    assert metadata["name"] == distribution
    assert metadata["requires-python"] == ">=3.11"
    released = re.findall(r"Python :: (3\.\d+)$", "\n".join(metadata["classifiers"]), re.M)
    assert released == [f"{major}.{minor}" for major, minor in releases.PYTHONS]
    assert metadata["license"] == "MIT"
    assert (ROOT / "packages" / folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert (
        metadata["authors"]
        and metadata["keywords"]
        and "Typing :: Typed" in metadata["classifiers"]
    )
    opening = (ROOT / "packages" / folder / metadata["readme"]).read_text().splitlines()[0]
    assert opening == f"# {distribution}"
    if folder != "frontend-tracer":
        entries = metadata["entry-points"]["tracer_core"]
        assert list(entries.values()) == [f"{module}.plugin"]
        assert compatible("tracer-core") in map(Requirement, metadata["dependencies"])


def test_each_backend_is_an_extra_of_the_core():
    extras = {
        name: [Requirement(item) for item in needed]
        for name, needed in project("frontend-tracer")["optional-dependencies"].items()
    }
    everything = extras.pop("all")
    clients = {extras.pop(name)[0].name for name in ("redis", "fsspec", "progress")}
    assert clients == {"redis", "fsspec", "tqdm"}  # what the core can do without
    assert extras == {name.removesuffix("-backend"): [compatible(name)] for name in BACKENDS}
    assert everything == [compatible(name) for name in BACKENDS]


def test_the_addresses_of_the_packages_are_one():
    assert len({str(project(folder).get("urls")) for folder in PACKAGES}) == 1


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


@pytest.mark.parametrize("folder", BACKENDS)
def test_a_backend_alone_finds_the_core(folder, tmp_path):
    """It is on no index yet: a checkout has it, and the wheels that `nox -s package` makes name its
    versions.
    """
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    for value in ("frontend-tracer", folder):
        shutil.copytree(ROOT / "packages" / value, tmp_path / "packages" / value, ignore=ignored)
    assert required(tmp_path / "packages" / folder) == [
        f"tracer-core @ file://{tmp_path}/packages/frontend-tracer"
    ]
    shutil.copytree(ROOT / "packages" / folder, tmp_path / "alone", ignore=ignored)
    assert [Requirement(item) for item in required(tmp_path / "alone")] == [
        compatible("tracer-core")
    ]


def required(source):
    """What a package asks of the core."""
    target = source / "metadata"
    target.mkdir()
    script = "import sys; from setuptools.build_meta import prepare_metadata_for_build_wheel as f; f(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", script, str(target)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = target.glob("*/METADATA")
    lines = [
        line.partition(": ")[2]
        for line in path.read_text().splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    return [line for line in lines if line.startswith("tracer-core")]


def test_readme_commands_come_first():
    lines = [line.strip() for line in (ROOT / "README.md").read_text().splitlines() if line.strip()]
    commands = [line.partition("#")[0].strip() for line in lines[1:3]]
    assert commands == [
        f"python -m pip install nox && python -m nox -s {name}" for name in ("demo", "tests")
    ]
