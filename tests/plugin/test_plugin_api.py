"""`tracer_core.plugin_api`: every name that it exports exists, has a type, and is no module."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tracer_core import plugin_api

TREE = ast.parse(Path(plugin_api.__file__).read_text())


def imported_for_checkers() -> dict[str, str]:
    """What a type checker sees of each deferred name: ``module:attribute``."""
    (block,) = (node for node in TREE.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("name", plugin_api.__all__)
def test_a_name_is_there_and_no_module(name):
    assert not isinstance(getattr(plugin_api, name), types.ModuleType)


def test_type_checkers_see_what_is_imported_at_run_time():
    at_run_time = {
        name: f"tracer_core.{module}:{attribute or name}"
        for module, exports in plugin_api._DEFERRED.items()
        for name, _, attribute in (item.partition("=") for item in exports.split())
    }
    assert imported_for_checkers() == at_run_time


def test_a_name_that_is_not_exported_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'flex_atention'"):
        _ = plugin_api.flex_atention


def test_importing_the_plugin_api_imports_neither_lowering_nor_tracer():
    program = (
        "import sys, tracer_core.plugin_api; "
        "print([name for name in sys.modules if name.startswith(('tracer_core.aot', 'tracer_core.trace.'))])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_no_function_returns_any():
    functions = [node for node in TREE.body if isinstance(node, ast.FunctionDef)]
    untyped = [
        function.name
        for function in functions
        if function.returns and ast.unparse(function.returns) == "Any"
    ]
    assert untyped == ["__getattr__"]
