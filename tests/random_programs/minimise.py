"""Makes a failing program small: statements go, blocks take their place, expressions become their
parts.

In: a program and a predicate "it still fails in the same way". Out: a smaller one for which it
holds. What always holds: each candidate is run, nothing is assumed.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.random_programs.program import Program

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")
_POLYFILLS = ("1", "p1", "None", "[1]")
#: Makes a candidate of a program; None where the edit does not apply or gives no program.
Edit = Callable[[Program], "Program | None"]
#: The edits of a program that may make it smaller.
Edits = Callable[[Any], Iterator[Edit]]


def minimise(
    program: Any,
    fails: Callable[[Any], bool],
    seconds: float = 60.0,
    passes: Sequence[Edits] | None = None,
) -> Any:
    """Greedy passes until none makes progress or the time is over. program: with a source, steps
    and `with_source`.
    """
    until = time.monotonic() + seconds
    best = program
    progress = True
    while progress:
        progress = False
        for edits_of in passes or (step_edits, statement_edits, expression_edits):
            edits, at = list(edits_of(best)), 0
            while at < len(edits):
                if time.monotonic() > until:
                    return best
                candidate = edits[at](best)
                if candidate is not None and fails(candidate):
                    best, progress = candidate, True
                    edits = list(
                        edits_of(best)
                    )  # what stood after the edit now stands at its place
                else:
                    at += 1
    return best


def step_edits(program: Program) -> Iterator[Edit]:
    for i in range(len(program.steps) - 1, -1, -1):
        yield lambda p, i=i: replace(p, steps=p.steps[:i] + p.steps[i + 1 :])  # type: ignore[misc]


def statement_edits(program: Program) -> Iterator[Edit]:
    """Outer statements first: whole functions and blocks go at once."""
    for number, node in enumerate(ast.walk(ast.parse(program.source))):
        for field in _BODIES:
            held = getattr(node, field, None)
            if not isinstance(held, list):
                continue
            size = len(held)
            while size:
                for start in range(0, len(held), size):
                    yield _cut(number, field, start, start + size)
                size //= 2
            for i, statement in enumerate(held):
                if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try, ast.With)):
                    yield _unwrap(number, field, i)


def _cut(number: int, field: str, start: int, end: int) -> Edit:
    def change(held: list[Any]) -> bool:
        del held[start:end]
        return True

    return edit(number, field, change)


def _unwrap(number: int, field: str, i: int) -> Edit:
    def change(held: list[Any]) -> bool:
        if i < len(held) and hasattr(held[i], "body"):
            held[i : i + 1] = held[i].body
            return True
        return False

    return edit(number, field, change)


def edit(number: int, field: str, change: Callable[[Any], bool]) -> Edit:
    def apply(program: Program) -> Program | None:
        tree = ast.parse(program.source)
        node = next((n for k, n in enumerate(ast.walk(tree)) if k == number), None)
        if node is None or not change(getattr(node, field)):
            return None
        text = _text(tree)
        return None if text is None or text == program.source else program.with_source(text)

    return apply


def expression_edits(program: Program) -> Iterator[Edit]:
    for number, node in enumerate(ast.walk(ast.parse(program.source))):
        for field, value in ast.iter_fields(node):
            for i, item in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(item, ast.expr) or isinstance(
                    getattr(item, "ctx", None), (ast.Store, ast.Del)
                ):
                    continue
                size = len(ast.unparse(item))
                parts = [
                    ast.unparse(c)
                    for c in ast.walk(item)
                    if isinstance(c, ast.expr) and c is not item
                ]
                for text in dict.fromkeys([*_POLYFILLS, *parts[:8]]):
                    if len(text) < size and text.startswith("*") == isinstance(item, ast.Starred):
                        yield _replace(number, field, i, isinstance(value, list), text)
                if isinstance(value, list) and isinstance(
                    node, (ast.Tuple, ast.List, ast.Call, ast.Set)
                ):
                    yield _cut(number, field, i, i + 1)


def _replace(number: int, field: str, i: int, is_list: bool, text: str) -> Edit:
    def apply(program: Program) -> Program | None:
        tree = ast.parse(program.source)
        node = next((n for k, n in enumerate(ast.walk(tree)) if k == number), None)
        try:
            other = ast.parse(text, mode="eval").body
        except SyntaxError:
            return None
        if node is None:
            return None
        if is_list:
            getattr(node, field)[i] = other
        else:
            setattr(node, field, other)
        result = _text(tree)
        return None if result is None else program.with_source(result)

    return apply


def _text(tree: ast.Module) -> str | None:
    """Source of a tree, with emptied blocks filled; None where that makes no program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and not node.handlers and not node.finalbody:
            return None
        if isinstance(node, ast.Match) and not node.cases:
            return None
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
    try:
        text = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        ast.parse(text)
    except (SyntaxError, ValueError, AttributeError):
        return None
    return text


def alike(item: Any, other: Any) -> bool:
    """Whether two failures look like one fault: the same status, and what differs begins alike."""
    return item.status == other.status and _kind(item) == _kind(other)


def _kind(result: Any) -> str:
    text = re.sub(r"\d+", "", result.where)
    if result.status == "crash":
        return text[text.find("captured") :][:40] if "captured" in text else text[:24]
    return (text.split(":") + [""])[1][:9]
