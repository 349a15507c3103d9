"""`nox -s tests` and `nox -s tests-full` share the tests between them; sweeps are sampled."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sweeps import function, sample

ROOT = Path(__file__).resolve().parents[1]

SWEEPS = """
import pytest

@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("x", range(40))
def test_many(x): ...

@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("x", range(2))
def test_few(x): ...

@pytest.mark.full
def test_wide(): ...

@pytest.mark.full
@pytest.mark.parametrize("x", range(30))
def test_all(x): ...

def test_plain(): ...
"""

MODULE = """
import pytest

pytestmark = pytest.mark.sweep(keep=4)

@pytest.mark.parametrize("x", range(10))
def test_a(x): ...

@pytest.mark.parametrize("x", range(10))
def test_b(x): ...
"""


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """collected(expression): the names of the tests above that pytest chooses."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "test_sweeps_of_functions.py").write_text(SWEEPS)
    (folder / "test_sweep_of_a_module.py").write_text(MODULE)
    (folder / "conftest.py").write_text(
        "from tests.support import sweeps\n"
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--share', type=int, default=1)\n"
        "def pytest_collection_modifyitems(config, items):\n"
        "    sweeps.mark_the_rest(items)\n"
        "    sweeps.leave_out(items, config.getoption('share'))\n"
    )

    def run(expression, share=1):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "-p",
            "no:cacheprovider",
            "-c",
            "pyproject.toml",
            f"--share={share}",
        ]
        done = subprocess.run(
            [*command, "--rootdir", str(ROOT), "-m", expression, str(folder)],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return {line.rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line}

    return run


def test_a_sample_of_each_sweep_stays(collected):
    daily, full = collected("not full"), collected("full")
    assert daily | full == collected("") and not daily & full
    counts = {
        name: sum(f"::{name}[" in item for item in daily) for name in ("test_many", "test_few")
    }
    assert counts == {"test_many": 3, "test_few": 2}
    assert sum("of_a_module" in item for item in daily) == 4
    assert {item for item in daily if "[" not in item} == {
        "test_sweeps_of_functions.py::test_plain"
    }
    assert "test_sweeps_of_functions.py::test_wide" in full


def test_a_share_of_what_is_full(collected):
    full, third = collected("full"), collected("full", share=3)
    assert third < full
    counts = collections.Counter(map(function, third))
    assert sum(name.startswith("test_sweeps_of_functions.py::test_all[") for name in full) == 30
    assert 5 <= counts.pop("test_sweeps_of_functions.py::test_all") <= 15
    assert counts["test_sweeps_of_functions.py::test_many"] == 1 == max(counts.values())
    assert collected("not full", share=3) == collected("not full")
    assert collected("full", share=1) == full


def test_a_sample_hardly_changes_with_the_cases():
    names = [f"case {i}" for i in range(200)]
    drawn = sample(names, 20)
    assert drawn == sample(reversed(names), 20) and len(drawn) == 20
    assert len(drawn & sample([*names, "another"], 20)) >= 19


def test_the_sessions_together_run_everything():
    text = (ROOT / "noxfile.py").read_text()
    assert 'BEFORE_A_COMMIT = "not full and not gpu and not slow"' in text
    assert 'SWEEPS = "full and not gpu and not slow"' in text
    assert 'EVERYTHING = "not gpu and not slow"' in text
    assert 'run_tests(session, EVERYTHING, "--share", "10")' in text
