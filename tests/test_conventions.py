"""Conventions that hold in every file of the packages: private names of torch stand behind one
door, and nothing is decided by what the text of an exception says."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

#: A private name of torch: a part of its path begins with an underscore. Operators (``torch.ops``)
#: are named by schemas.
PRIVATE = re.compile(r"\btorch(?!\.ops\b)(\.\w+)*?\._(?!_)\w+")

FILES = [
    path
    for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
    if "torch_private" not in (*path.parts, path.stem)
]


def private_names(tree: ast.Module) -> Iterator[str]:
    """The private names of torch that a module imports, reads, or has in its texts (which it may
    execute, or compare with names of modules). Docstrings may say what torch calls a thing."""
    aliases: dict[str, str] = {}
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {name.asname: name.name for name in node.names if name.asname}
            yield from found(*(f"{name.name} (line {node.lineno})" for name in node.names))
        elif isinstance(node, ast.ImportFrom):
            aliases |= {
                name.asname or name.name: f"{node.module}.{name.name}" for name in node.names
            }
            yield from found(
                *(f"{node.module}.{name.name} (line {node.lineno})" for name in node.names)
            )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            yield from found(f"{aliases.get(first, first)}{dot}{rest} (line {node.lineno})")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ):
            yield from found(f"{node.value} (line {node.lineno})")


class Findings(NamedTuple):
    """What the checks of this file find in one file of ours."""

    private_names: list[str]
    private_attributes: list[str]
    decided_by_text: list[str]


@functools.cache  # three tests look at each file
def findings(path: Path) -> Findings:
    tree = ast.parse(path.read_text())
    return Findings(
        list(private_names(tree)), private_attributes(tree), list(decided_by_text(tree))
    )


def found(*texts: str) -> list[str]:
    return [text for text in texts if PRIVATE.search(text)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_private_names_of_torch_stand_in_torch_private(path):
    assert findings(path).private_names == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch._ops",
        "from torch._ops import OpOverload",
        "from torch.utils import _pytree as pytree",
        "import torch\nx = torch._C._get_tracing_state()",
        "import torch\nx: torch.cuda._sleep",
        "import torch.distributed as dist\ndist._DEFAULT",
        "from torch import nn\nnn.attention._sdpa_kernel",
        "exec('torch._foreach_add_(x, 1)')",
    ],
)
def test_the_check_sees_a_private_name(text):
    assert list(private_names(ast.parse(text)))


def test_the_check_lets_public_names_and_operators_pass():
    text = '"""torch._C"""\nimport torch\naten = torch.ops.aten\n(torch.__version__, torch.ops.aten._softmax, aten._softmax)'
    assert not list(private_names(ast.parse(text)))


#: Private attributes of tensors that programs and torch's own documents use.
USUAL = {"_backward_hooks", "_base", "_is_view", "_version"}
ATTRIBUTES = {
    name for owner in (torch.Tensor, torch.UntypedStorage) for name in dir(owner)
    if re.match(r"_[a-z]", name)
} - USUAL  # fmt: skip


def private_attributes(tree: ast.Module) -> list[str]:
    """The private attributes of tensors and storages that a module reads; a class of its own may
    have one of the same name."""
    return [
        f"{ast.unparse(node)} (line {node.lineno})"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ATTRIBUTES
        and ast.unparse(node.value) not in ("self", "cls", "aten", "torch.ops.aten")
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_private_attributes_of_tensors_stand_in_torch_private(path):
    assert findings(path).private_attributes == []


def test_the_check_sees_a_private_attribute():
    assert private_attributes(ast.parse("x.untyped_storage()._cdata"))
    assert private_attributes(ast.parse("x._has_symbolic_sizes_strides"))
    assert not private_attributes(ast.parse("x._version, self._values, aten._to_dense"))


#: Where an exception of others has no type of its own -> whose text tells it.
IDENTIFIED_BY_TEXT = {
    "native_calls.py": "Python's, of a list that is too short",
    "triton_compile.py": "the CUDA driver's, of an image that it cannot load",
}


TESTS = ("startswith", "endswith", "search", "match", "fullmatch")


def decided_by_text(tree: ast.Module) -> Iterator[str]:
    """Tests of what the text of an exception says: of one that is handled, or that a function is
    given.
    """
    for scope in ast.walk(tree):
        if isinstance(scope, ast.ExceptHandler):
            names = {scope.name}
        elif isinstance(scope, ast.FunctionDef):
            inputs = {
                arg.arg: ast.unparse(arg.annotation) for arg in scope.args.args if arg.annotation
            }
            names = {name for name, kind in inputs.items() if kind.endswith(("Exception", "Error"))}
        else:
            continue
        if not names:
            continue
        texts = {f"str({name})" for name in names}
        for node in ast.walk(scope):
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in TESTS
            ):
                compared = [node.func.value, *node.args]
            if compared and texts & set(map(ast.unparse, compared)):
                yield f"{ast.unparse(node)} (line {node.lineno})"


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
def test_the_text_of_an_exception_decides_nothing(path):
    assert findings(path).decided_by_text == [] or path.name in IDENTIFIED_BY_TEXT


@pytest.mark.parametrize(
    "test",
    [
        "'gone' in str(error)",
        "str(error).startswith('gone')",
        "re.search('gone', str(error))",
        "str(error) == 'gone'",
    ],
)
def test_the_check_sees_what_is_decided_by_a_text(test):
    assert list(decided_by_text(ast.parse(f"try: f()\nexcept E as error:\n    if {test}: g()")))
    assert list(decided_by_text(ast.parse(f"def f(error: RuntimeError):\n    return {test}")))
    assert not list(
        decided_by_text(ast.parse("try: f()\nexcept E as error:\n    raise F(str(error))"))
    )


def test_the_files_that_start_first_exist():
    tree = ast.parse((ROOT / "tests" / "conftest.py").read_text())
    (names,) = (
        node.value.func.value.value.split()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONG"
    )
    assert [name for name in names if not (ROOT / "tests" / f"{name}.py").exists()] == []


#: A longer file has several subjects.
MAX_TEST_FILE_LINES = 600


def test_test_files_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py")}
    assert {
        str(path.relative_to(ROOT)): length
        for path, length in lengths.items()
        if length > MAX_TEST_FILE_LINES
    } == {}
