"""Finds the numeric constants of our packages, by their syntax trees."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Constants that are no limits: a category and a line ``file: NAME NAME`` each.
ALLOWED = Path(__file__).with_name("constants.txt")
CATEGORIES = {
    "layout": "where something lies in memory, or in a text, and how large it is there",
    "format": "versions and numbers of formats, flags and protocols",
    "mathematics": "numbers of a formula or of a number format",
    "block_size": "sizes of tiles, blocks, vectors and chunks of kernels",
    "cost_model": "numbers that choose the faster of two ways that give the same result",
    "tolerance": "how far results may be apart",
    "timing": "how often and how long something is measured, waited for or looked at",
    "cache": "capacity of a memory of what can be made again",
    "message": "how much a message shows",
}


@dataclass(frozen=True, order=True)
class Constant:
    """A name in capitals bound to a number, or to arithmetic of numbers, by a module or a class."""

    file: str
    name: str
    line: int


def constants_of(text: str, file: str) -> list[Constant]:
    """Returns the numeric constants in the source text of a file."""
    return [
        Constant(file, name, statement.lineno)
        for statement in _of_modules_and_classes(ast.parse(text))
        for name, value in _bound(statement)
        if name == name.upper() and any(map(str.isalpha, name)) and _is_number(value)
    ]


@functools.cache
def constants() -> list[Constant]:
    """Returns those of all packages outside of their tables of limits."""
    return [
        constant
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        if path.name != "limits.py"
        for constant in constants_of(path.read_text(), "/".join(path.relative_to(ROOT).parts[3:]))
    ]


def allowed() -> dict[tuple[str, str], str]:
    """Returns (file, name) -> category of the constants that are no limits."""
    actual: dict[tuple[str, str], str] = {}
    category = ""
    for line in ALLOWED.read_text().splitlines():
        if line.startswith("["):
            category = line.strip("[]")
        elif line and not line.startswith("#"):
            file, _, names = line.partition(": ")
            for name in names.split():
                assert (file, name) not in actual, f"{ALLOWED.name} has {file}: {name} twice"
                actual[file, name] = category
    return actual


def _of_modules_and_classes(node: ast.AST) -> Iterator[ast.stmt]:
    """Yields the statements of a module and of the classes in it. No expression holds any."""
    if isinstance(node, (ast.Module, ast.ClassDef)):
        yield from node.body
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for inner in getattr(node, field, ()):
            yield from _of_modules_and_classes(inner)


def _bound(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yields the names that a statement binds, with their values."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    else:
        return
    for target in targets:
        if isinstance(target, ast.Name) and statement.value is not None:
            yield target.id, statement.value
        elif isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            for elt, value in zip(target.elts, statement.value.elts):
                if isinstance(elt, ast.Name):
                    yield elt.id, value


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    return isinstance(value, ast.BinOp) and _is_number(value.left) and _is_number(value.right)
