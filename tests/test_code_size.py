"""tools/code_size.py counts lines of code: no blanks, no comments, no docstrings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.code_size import (
    Size,
    main,
    native_lines,
    package_sizes,
    python_lines,
    table,
    too_large,
)

ROOT = Path(__file__).resolve().parents[1]

PYTHON = '''"""A module's docstring
of two lines."""

import math  # code


class Circle:
    """A docstring."""

    name = """a string that is no docstring
    counts with both lines"""

    def area(self, radius):
        # a comment
        """A docstring after a comment."""

        return (
            math.pi
            * radius**2
        )
'''

NATIVE = """// a comment
#include <cmath>

/* a comment
   of three lines
*/
const char *text = "// no comment /*";  // but this is one
int twice(int x) { /* short */
  return 2 * x;
}
"""


def test_python():
    assert python_lines(PYTHON) == 9


def test_an_empty_python_file():
    assert python_lines("") == 0


def test_a_docstring_beside_code():
    assert python_lines('def f(): "says nothing"; return 1\n') == 1


def test_c_and_cpp():
    assert native_lines(NATIVE) == 5


def test_packages(tmp_path):
    source = tmp_path / "packages" / "one" / "src" / "one"
    source.mkdir(parents=True)
    (source / "module.py").write_text(PYTHON)
    (source / "kernel.cpp").write_text(NATIVE)
    (source / "py.typed").write_text("")
    assert package_sizes(tmp_path) == {"one": Size(9, 5)}


def test_the_table_shows_what_changed():
    lines = table({"one": Size(1_009, 5)}, {"one": Size(1_000, 5), "gone": Size(3, 0)}).splitlines()
    assert lines[1].split() == ["gone", "0", "0", "3", "0", "-3"]
    assert lines[2].split() == ["one", "1,009", "5", "1,000", "5", "+9"]


def test_no_package_grows_unnoticed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["code_size"])
    status, printed = main(), capsys.readouterr().out
    assert status == 0, printed
    named = {line.split()[0] for line in printed.splitlines()[1:]}
    assert named == {path.name for path in (ROOT / "packages").iterdir()}


def test_a_revision_that_is_not_there():
    command = [sys.executable, "-m", "tools.code_size", "--since", "no-such-revision"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "not a valid object name" in done.stderr


def test_a_package_that_grew():
    (problem,) = too_large({"a": Size(90, 11), "b": Size(5, 0)}, {"a": 100, "b": 5})
    assert problem == "a has 101 code lines, allowed are 100 (pyproject.toml)"
