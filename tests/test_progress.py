"""Failures are named as they come, progress is in time, and `nox -s quick` reaches every folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import quick
from tests.conftest import LONG
from tests.support import progress

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import pytest

@pytest.fixture
def broken():
    raise ValueError("no server")

def test_wrong():
    assert 1 + 1 == 3, "a sum"

def test_right(): ...

def test_without_server(broken): ...
"""

CONFTEST = """
import os
from tests.support import progress

def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(progress.NamedFailures(config))
        several = bool(config.getoption("numprocesses", None))
        config.pluginmanager.register(progress.Progress(config, (), several))
"""


@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one_process", "xdist"])
def test_a_failure_is_named_before_the_run_ends(tmp_path, processes):
    (tmp_path / "test_sums.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "--tb=no", "-p", "no:cacheprovider", *processes]
    # this process may be a worker itself
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    summary = next(i for i, text in enumerate(lines) if "short test summary" in text)
    early = [text for text in lines[:summary] if text.startswith("FAILED ")]
    assert "FAILED test_sums.py::test_wrong: AssertionError: a sum" in early, done.stdout
    assert "FAILED test_sums.py::test_without_server (setup): ValueError: no server" in early
    assert any(text.startswith("[100% of the time] 3 of 3 tests, 2 failed") for text in lines)


def test_the_share_is_of_time():
    ids = ["tests/a.py::x", "tests/a.py::y", "tests/b.py::z", "tests/c.py::w"]
    of_test = progress.weights(ids, {"tests/a.py": 60.0}, {"tests/b.py": 5.0})
    assert of_test == {"tests/a.py": 30.0, "tests/b.py": 5.0, "tests/c.py": progress.TEST}


def test_a_line_says_how_long_is_left():
    assert progress.line(0.25, 40, 1600, 60.0, 1) == (
        "[ 25% of the time] 40 of 1,600 tests, 1 failed, 1 min 00 s, about 3 min 00 s left"
    )
    assert "left" not in progress.line(0.01, 1, 1600, 60.0, 0)


def test_the_files_of_long_exist_and_are_guessed_longest_first():
    guesses = progress.guesses(LONG)
    assert [name for name in guesses if not (ROOT / name).exists()] == []
    assert list(guesses.values()) == sorted(guesses.values(), reverse=True)


def test_quick_takes_a_few_tests_of_each_folder_and_all_checks():
    names = [
        (f"folder{i}", f"tests/folder{i}/test_{j}.py::t{k}")
        for i in range(3)
        for j in range(2)
        for k in range(9)
    ]
    names += [("", f"tests/test_words.py::t{k}") for k in range(9)]
    selected = quick.chosen(names, 0)
    for i in range(3):
        of_folder = [name for name in selected if f"folder{i}/" in name]
        assert len(of_folder) == quick.COUNT and len({n.partition("::")[0] for n in of_folder}) == 2
    assert sum("test_words" in name for name in selected) == 9
    assert quick.chosen(names, 1) != selected


def test_quick_leaves_out_files_that_need_other_libraries():
    chosen = quick.files(0, LONG)
    names = {str(path.relative_to(ROOT / "tests")) for path in chosen}
    folders = {name.partition("/")[0] for name in names}
    assert {"guards", "bytecode", "trace", "inductor", "aot", "execution"} <= folders
    assert not any("import transformers" in path.read_text() for path in chosen)
    assert "engines/test_tvm.py" not in names and "test_words.py" in names
