"""The tables of limits: every constant that changes what a program does has a row, each row has a
test, TRACER_LIMITS changes it, and the page is the table."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.limits.constants import (
    CATEGORIES,
    Constant,
    allowed,
    constants,
    constants_of,
)
from tests.limits.tested import ELSEWHERE, TESTED
from tests.limits.untested import UNTESTED
from tests.support import torch_server
from tracer_core.limit_table import SHOWN, LimitTable
from tracer_core.registry import limits

ROOT = Path(__file__).resolve().parents[1]
TABLES = limits.tables()
ROWS = {name: row for table in TABLES for name, row in table.items()}
FILES = sorted(ROOT.glob("packages/*/src/*/limits.py"))


def test_each_constant_is_a_limit_or_of_a_category():
    known = allowed()
    new = [constant for constant in constants() if (constant.file, constant.name) not in known]
    assert not new, "\n".join(map(explained, new))


def explained(constant: Constant) -> str:
    package = constant.file.partition("/")[0]
    return (
        f"{constant.file}:{constant.line}: {constant.name} is a numeric constant. If a program is captured, compiled,"
        f" kept or run in another way beyond it, register it in {package}/limits.py and import it from"
        " there, with a test in tests/limits. If it is no limit, add it to tests/limits/constants.txt"
        f" under one of: {', '.join(CATEGORIES)}."
    )


def test_the_list_of_constants_has_nothing_else():
    present = {(constant.file, constant.name) for constant in constants()}
    assert set(allowed()) - present == set() and set(allowed().values()) == set(CATEGORIES)


def test_the_check_sees_constants():
    text = (
        "MOST = 5\nA, B = 1, 'b'\nclass C:\n    MANY: int = 2 * -(1 << 3)\n    NAME = 'x'\nx = 3\n"
    )
    assert [constant.name for constant in constants_of(text, "")] == ["MOST", "A", "MANY"]
    assert constants_of("MANY = limits.MANY\nYES = True\ndef f():\n    MANY = 5\n", "") == []


def test_every_row_is_tested_or_says_why_not():
    untested = set(ROWS) - set(TESTED) - set(UNTESTED)
    assert not untested, f"add a program to tests/limits, or the reason to untested.py: {untested}"
    assert (set(TESTED) | set(UNTESTED)) - set(ROWS) == set()
    assert len(set(TESTED) | set(UNTESTED)) == len(TESTED) + len(UNTESTED)  # each once


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_tests_elsewhere_exist(name):
    file, _, function = ELSEWHERE[name].partition("::")
    assert f"def {function}(" in (ROOT / "tests" / file).read_text()


def test_names_are_those_of_the_vocabulary_and_belong_to_one_package():
    assert all(name.startswith(("MAX_", "MIN_")) for name in ROWS)
    assert len(ROWS) == sum(map(len, TABLES))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_each_name_is_the_one_that_it_is_assigned_to(path):
    calls = [item for item in ast.parse(path.read_text()).body if isinstance(item, ast.Assign)]
    rows = [
        (ast.unparse(call.targets[0]), call.value.args[0].value)
        for call in calls
        if isinstance(call.value, ast.Call) and ast.unparse(call.value.func) == "LIMITS.add"
    ]
    assert rows and all(target == name for target, name in rows)


@pytest.mark.parametrize("name", ROWS)
def test_each_limit_is_used(name):
    (table,) = (table for table in TABLES if name in table)
    sources = [
        path.read_text()
        for path in ROOT.glob(f"packages/*/src/{table.package}/**/*.py")
        if path.name != "limits.py"
    ]
    assert any(name in text for text in sources)


def test_no_file_binds_a_limit_under_another_name():
    bound = [
        f"{path.relative_to(ROOT)}:{item.lineno}: {ast.unparse(item)}"
        for path in ROOT.glob("packages/*/src/**/*.py")
        if path.name != "limits.py"
        for item in ast.parse(path.read_text()).body
        if isinstance(item, (ast.Assign, ast.AnnAssign)) and item.value is not None
        for value in getattr(item.value, "elts", [item.value])
        if _name_of(value) in ROWS
    ]
    assert not bound, bound


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("name", ROWS)
def test_each_row_is_made_of_sentences(name):
    row = ROWS[name]
    assert row.beyond[0].isupper() or row.beyond[0] == "`"
    assert row.beyond.endswith(".") and row.unit and row.seen and row.changed
    assert row.is_fixed == row.changed.startswith("no way: ")


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if SHOWN in row.seen])
def test_what_explain_shows_is_reported(name):
    (table,) = (table for table in TABLES if name in table)
    files = ROOT.glob(f"packages/*/src/{table.package}/**/*.py")
    assert any(f'"{name}"' in path.read_text() for path in files if path.name != "limits.py")


def test_the_page_of_limits_is_the_table():
    assert (ROOT / "docs" / "limits_table.md").read_text() == limits.page()


def test_two_limits_of_one_name():
    table = LimitTable("some_backend")
    table.add("MAX_THINGS", 3, unit="things", beyond="No more.")
    with pytest.raises(ValueError, match="some_backend has two limits MAX_THINGS"):
        table.add("MAX_THINGS", 4, unit="things", beyond="No more.")


# -- TRACER_LIMITS, which is read once: each in a process of its own


def process(program: str, text: str) -> subprocess.CompletedProcess[str]:
    return torch_server.run(["-c", program], env=os.environ | {"TRACER_LIMITS": text}, timeout=120)


def test_a_limit_is_changed_for_one_process():
    program = (
        "from tracer_core import limits; from tracer_core.execution.tiers import eager_or_compiled\n"
        "from inductor_backend.schedule import fusion\n"
        "print(limits.MAX_RECAPTURES, eager_or_compiled.MAX_RECAPTURES, fusion.MAX_FUSED_COPY,"
        " limits.LIMITS['MAX_RECAPTURES'].default, limits.MAX_TURN_SECONDS)"
    )
    done = process(program, " max_recaptures = 5 ,MAX_FUSED_COPY=7,MAX_TURN_SECONDS=0.5,")
    assert done.stdout.split() == ["5", "5", "7", "16", "0.5"], done.stderr


COMPILES = """
import tracer_core
try:
    tracer_core.compile(lambda x: x, backend="eager")
except tracer_core.errors.OptionError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MAX_RECAPTURE=5", "there is no limit 'MAX_RECAPTURE'; the nearest name is MAX_RECAPTURES"),
        ("MAX_FUSED_COPI=5", "there is no limit 'MAX_FUSED_COPI'; the nearest name is MAX_FUSED_COPY"),
        ("MAX_RECAPTURES", "MAX_RECAPTURES='': an integer of at least 1"),
        ("MAX_RECAPTURES=many", "MAX_RECAPTURES='many': an integer of at least 1"),
        ("MAX_RECAPTURES=0", "MAX_RECAPTURES='0': an integer of at least 1"),
        ("MAX_TURN_SECONDS=nan", "MAX_TURN_SECONDS='nan': a number"),
        ("MAX_INLINED_CALLS=5", "MAX_INLINED_CALLS cannot be changed (no way: the trace uses"),
        ("MAX_GUARDED_ITEMS=5", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tracer_limits(text, message):
    done = process(COMPILES, text)
    assert done.returncode == 0, done.stderr
    assert message in done.stdout and bool(done.stdout) == bool(message)


def test_the_command_shows_the_table():
    program = "from tracer_core.command import main; raise SystemExit(main(['limits']))"
    done = process(program, "MAX_GUARDED_ITEMS=5")
    assert done.returncode == 0, done.stderr
    assert (
        "MAX_GUARDED_ITEMS = 5 items of a container from before the call (default 10,000)"
        in done.stdout
    )
    assert "inductor_backend\n" in done.stdout and "MAX_COPIED_RESULTS" in done.stdout
    wrong = process(program, "MAX_GUARDED_ITEM=5")
    assert wrong.returncode == 1 and "the nearest name is MAX_GUARDED_ITEMS" in wrong.stderr


def test_the_command_gives_json():
    program = "from tracer_core.command import main; raise SystemExit(main(['limits', '--json']))"
    data = json.loads(process(program, "").stdout)
    assert [row["name"] for row in data["tracer_core"]] == list(TABLES[0])
