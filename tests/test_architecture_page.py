"""What docs/ name exists; the program that docs/architecture.md follows is captured as it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tracer_core

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]

#: `package/path/file.py`, `package/path/` or `package/path/file.py::function`, `::Class.method`.
REFERENCE = re.compile(
    r"\b((?:tracer_core|(?:inductor|cudagraphs|onnxrt|tvm)_backend)/[\w/.]*)(?:::([\w.]+))?"
)


def references():
    for page in PAGES:
        text = (ROOT / page).read_text()
        yield from sorted(
            {(page, path.rstrip("."), name or "") for path, name in REFERENCE.findall(text)}
        )


def defined_in(path):
    """Qualified names of the functions, classes and module variables of a file."""
    names = set()

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign):
                names.update(
                    prefix + target.id for target in child.targets if isinstance(target, ast.Name)
                )
            elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                names.add(prefix + child.target.id)

    visit(ast.parse(path.read_text()), "")
    return names


@pytest.mark.parametrize(("page", "path", "name"), list(references()))
def test_what_is_named_exists(page, path, name):
    (source,) = {
        folder for folder in ROOT.glob("packages/*/src") if (folder / path.split("/")[0]).exists()
    }
    assert (source / path).exists()
    if name:
        assert name in defined_in(source / path)


def test_the_architecture_page_names_functions_of_every_step():
    named = [(path, name) for page, path, name in references() if page == "docs/architecture.md"]
    assert sum(bool(name) for _, name in named) > 50
    folders = {path.split("/")[1] for path, _ in named if path.startswith("inductor_backend/")}
    assert {"passes", "lowering", "ir", "schedule", "codegen", "kernels", "runtime"} <= folders


def test_the_program_gives_the_graph_that_the_page_follows():
    (program,) = re.findall(
        r"^```python\n(.*?)^```",
        (ROOT / "docs/architecture.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    names = {}
    exec(compile(program, "docs/architecture.md", "exec"), names)
    assert names["result"].shape == (8, 64)
    (graph,) = tracer_core.explain(names["Gate"]())(names["result"]).graphs
    calls = [node.name for node in graph.graph.nodes if node.op == "call_function"]
    assert calls == ["add", "relu", "mul"]
