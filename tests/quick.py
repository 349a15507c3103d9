"""Two minutes of tests for a contributor with two cores: ``python -m tests.quick``, or ``nox -s quick``.

A few tests of every folder of tests/, chosen by a hash of the seed and their names, and all of the
checks of words, limits, layers and links. Left out: files that name libraries which the session does
not install (TVM, OpenVINO, ONNX Runtime, transformers and others), those that start processes, and
those in `LONG` of tests/conftest.py. ``--seed 1`` chooses others; further arguments are pytest's.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"

#: All of their tests run.
CHECKS = ("test_words.py", "test_limits.py", "test_layers.py", "test_docs.py")

#: Libraries that the session does not install.
ABSENT = re.compile(
    r"\b(transformers|timm|torchvision|openvino|tvm|onnx\w*|accelerate|lightning|peft)\b"
)
#: Files that install packages or start processes, which takes long.
SLOW = re.compile(r"\b(subprocess|torch_server|multiprocessing|install\w*|pair|\w+_programs)\b")
#: Files and tests of each folder.
FILES, COUNT = 3, 5


def rank(seed: int, name: str) -> bytes:
    """Returns the place of a name in the order of a seed."""
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def files(seed: int, long: Sequence[str]) -> list[Path]:
    """Returns `FILES` files of each folder that need nothing else and are not long."""
    result = []
    for folder in sorted(path for path in TESTS.iterdir() if path.is_dir()):
        fit = [
            path
            for path in folder.rglob("test_*.py")
            if str(path.relative_to(TESTS).with_suffix("")) not in long
            and not any(pattern.search(path.read_text()) for pattern in (ABSENT, SLOW))
        ]
        names = sorted(fit, key=lambda path: rank(seed, str(path.relative_to(ROOT))))
        result += names[:FILES]
    return [*(TESTS / name for name in CHECKS), *result]


def chosen(names: Sequence[tuple[str, str]], seed: int) -> set[str]:
    """Returns the tests that run. names: (folder, test); of folder "" all."""
    ordered = sorted(names, key=lambda item: rank(seed, item[1]))
    of_file: Counter[str] = Counter()
    turns: dict[str, int] = {}
    for _, name in ordered:
        file = name.partition("::")[0]
        turns[name] = of_file[file]
        of_file[file] += 1
    ordered.sort(key=lambda item: turns[item[1]])  # one of each file, then a second one
    result = set()
    for folder, group in itertools.groupby(
        sorted(ordered, key=lambda item: item[0]), key=lambda item: item[0]
    ):
        tests = [name for _, name in group]
        result.update(tests if not folder else tests[:COUNT])
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=0, help="which tests of each folder run")


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = [
        (str(item.path.relative_to(TESTS).parent).replace(".", ""), item.nodeid) for item in items
    ]
    selected = chosen(names, config.getoption("--seed"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in selected])
    items[:] = [item for item in items if item.nodeid in selected]


def main(arguments: Sequence[str]) -> int:
    """Runs pytest on the chosen files; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options, rest = parser.parse_known_args(arguments)
    from tests.conftest import LONG  # sets the environment of the tests, too

    command = [
        sys.executable, "-m", "pytest", "-p", "tests.quick", f"--seed={options.seed}",
        "-m", "not full and not gpu and not slow", "-n", "2", "--dist", "loadfile",
        "--no-loadscope-reorder", "--progress", "-o", "console_output_style=classic", *rest,
        *map(str, files(options.seed, LONG)),
    ]  # fmt: skip
    return subprocess.call(command, cwd=ROOT, env={**os.environ, "OMP_WAIT_POLICY": "passive"})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
