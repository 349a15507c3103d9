"""Docstrings of what users and plug-in authors import: sections for functions, `#:` for fields.

ruff's pydocstyle rules check the form of the sections (pyproject.toml lists the modules); this file
checks that they are there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest

import tracer_core
from tracer_core import plugin_api

#: Not ours: pluggy's marker, and torch's operators.
FOREIGN = {"hookimpl"}
EXPORTED = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module in (tracer_core, plugin_api)
    for name in module.__all__
    if name not in FOREIGN
]
#: Functions whose arguments are those of an operator.
OF_OPERATORS = ("flex_attention_", "scan_", "scalar_")
FUNCTIONS = [
    row
    for row in EXPORTED
    if inspect.isfunction(row.values[0]) and not row.id.rpartition(".")[2].startswith(OF_OPERATORS)
]
RECORDS = [
    row
    for row in EXPORTED
    if dataclasses.is_dataclass(row.values[0]) and inspect.isclass(row.values[0])
]
USERS = [row for row in FUNCTIONS if row.id.startswith("tracer_core.") and row.id.count(".") == 1]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_describes_its_arguments(function):
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    _, _, section = inspect.getdoc(function).partition("\nArgs:\n")
    described = [line.strip().lstrip("*").partition(":")[0] for line in section.splitlines()]
    assert [name for name in names if name not in described] == []


@pytest.mark.parametrize("function", USERS)
def test_a_users_function_has_an_example(function):
    assert "\nExamples:\n" in inspect.getdoc(function)


@pytest.mark.parametrize("record", RECORDS)
def test_each_field_has_a_comment_of_its_own(record):
    path = Path(inspect.getfile(record))
    lines = path.read_text().splitlines()
    (cls,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == record.__name__
    )
    fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    bare = [
        node.target.id
        for node in fields
        if not lines[node.lineno - 2].strip().startswith("#:") and node.target.id != "_"
    ]
    assert bare == []
