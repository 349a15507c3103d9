"""``python -m tools.code_size [--since REVISION]``: code lines of each package.

Exits with 1 if a package has more lines than ``[tool.code_size]`` of pyproject.toml allows: a change
that needs more raises the number there, and its commit says why.

Counts what the packages ship, without blanks, comments and docstrings: Python by its tokens and its
syntax tree, C and C++ with their comments taken out. With ``--since``, prints the lines at that
revision of git beside those of the working tree.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

C_SUFFIXES = (".c", ".cpp", ".h")

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}

#: A literal, which may hold what looks like a comment, or a comment.
_C_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


class Size(NamedTuple):
    """Code lines of one package."""

    python: int
    native: int


def python_lines(text: str) -> int:
    """Lines that hold code. A string that is no docstring counts with all its lines."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT and token.start not in docstrings:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def native_lines(text: str) -> int:
    """Lines of C or C++ that hold more than comments."""

    def without_comment(match: re.Match[str]) -> str:
        return match[0] if match[0][0] in "\"'" else "\n" * match[0].count("\n")

    return sum(bool(line.strip()) for line in _C_TOKEN.sub(without_comment, text).splitlines())


def package_sizes(root: Path) -> dict[str, Size]:
    """The size of each package under ``packages/``."""
    sizes = {}
    for source in sorted(root.glob("packages/*/src")):
        files = [path for path in source.rglob("*") if path.is_file()]
        python = sum(python_lines(path.read_text()) for path in files if path.suffix == ".py")
        native = sum(native_lines(path.read_text()) for path in files if path.suffix in C_SUFFIXES)
        sizes[source.parent.name] = Size(python, native)
    return sizes


def sizes_at(revision: str) -> dict[str, Size]:
    """The sizes at a revision of git."""
    command = ["git", "archive", revision, "packages"]
    archive = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(fileobj=io.BytesIO(archive)) as packed,
    ):
        packed.extractall(folder, filter="data")
        return package_sizes(Path(folder))


def table(now: dict[str, Size], before: dict[str, Size] | None = None) -> str:
    """One line a package; where ``before`` is given, its numbers and the difference too."""
    rows = [
        f"{'package':<20}{'Python':>9}{'C, C++':>9}"
        + (f"{'before':>18}{'change':>9}" if before is not None else "")
    ]
    for name in sorted(now.keys() | (before or {}).keys()):
        size = now.get(name, Size(0, 0))
        row = f"{name:<20}{size.python:>9,}{size.native:>9,}"
        if before is not None:
            old = before.get(name, Size(0, 0))
            row += f"{old.python:>9,}{old.native:>9,}{sum(size) - sum(old):>+9,}"
        rows.append(row)
    return "\n".join(rows)


def too_large(sizes: dict[str, Size], allowed: dict[str, int]) -> list[str]:
    """Returns a line for each package that has more lines than it may have, or no number."""
    return [
        f"{name} has {sum(size):,} code lines, allowed are {allowed.get(name, 0):,} (pyproject.toml)"
        for name, size in sizes.items()
        if sum(size) > allowed.get(name, 0)
    ]


def allowed_sizes() -> dict[str, int]:
    """Returns how many lines of Python, C and C++ each package may have."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sizes: dict[str, int] = settings["tool"]["code_size"]
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", metavar="REVISION", help="a revision of git to compare with")
    since = parser.parse_args().since
    before = sizes_at(since) if since else None
    sizes = package_sizes(ROOT)
    print(table(sizes, before))
    problems = too_large(sizes, allowed_sizes())
    for problem in problems:
        print(problem)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
