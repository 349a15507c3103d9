"""Imports go downwards: the listing of the core is its data flow, and a backend sees only the plug-in API."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "packages" / "frontend-tracer" / "src" / "tracer_core"

#: Lowest first; a module may import what stands before it or beside it. Folders count as one entry.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("version", "errors", "numpy_types", "torch_private", "settings", "collector", "released", "deferred"),
    ("options",),
    ("logs", "cache_location", "entries"),
    ("guards.layout", "guards.c_helper", "guards.version_words", "guards.constant_contents", "guards.constant_check"),
    ("stages",),
    ("plugin_api",),
    ("captured", "hookspecs", "fallbacks", "eager_backend", "compiled_module", "contiguous", "promotion"),
    ("auto.backend", "auto.choice"),
    ("one_node", "alarms"),
    ("bridges", "markers"),
    ("functional",),
    ("backends",),
    ("auto.plan",),
    ("events", "validation"),
    ("api",),
    ("__init__",),
    ("aten", "verify", "result_check", "written"),
    ("auto",),
    ("dispatch",),
    ("segments.breaks",),  # the table of breaks: names and texts only
    ("source", "provenance", "guards"),
    (
        "effects",
        "rebuild",
        "rebuild_containers",
        "rebuild_objects",
        "remake",
        "shapes",
        "natives",
        "recorder",
        "interpreter",
        "segments",
        "cache",
    ),
    ("runtime", "portable"),
    ("report", "stored"),
    ("testing",),
)

#: Modules whose imports inside functions go upwards on purpose.
SERVICES = {
    "plugin_api": "what a backend calls is offered here and implemented above",
    "api": "what users call is offered here; ``import tracer_core`` must not import the tracer",
}

BACKENDS = sorted(
    path
    for path in ROOT.glob("packages/*/src/*")
    if path.is_dir() and path.name != "tracer_core" and path.suffix != ".egg-info"
)

#: An import inside a function says why in a comment on its line: ``# heavy: triton``, ``# optional: ...``.
REASON = re.compile(r"#\s*(?!type:|noqa)\w+")


@dataclass(frozen=True)
class OwnImport:
    """An import of our own package: what, on which line, with which comment, inside a function or not."""

    target: str
    line: int
    text: str
    local: bool


def rank(module: str) -> int:
    """The layer of ``tracer_core.<module>...``."""
    parts = module.removeprefix("tracer_core").lstrip(".").split(".")
    names = (".".join(parts[:2]), parts[0] or "__init__")  # a module of its own layer, or its folder
    for name in names:
        for index, layer in enumerate(LAYERS):
            if name in layer:
                return index
    raise AssertionError(f"tracer_core.{names[0]} has no place in tests/test_layers.py: LAYERS")


def own_imports(path: Path, package: str) -> list[OwnImport]:
    """What a file imports of `package`, imports for type checkers apart."""
    text = path.read_text()
    lines = text.splitlines()
    tree = ast.parse(text)
    typing_only = {id(inner) for node in ast.walk(tree) if is_type_checking(node) for inner in ast.walk(node)}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    local = {id(inner) for function in functions for inner in ast.walk(function)}
    found = []
    for node in ast.walk(tree):
        if id(node) in typing_only or not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for target in targets(node):
            if target == package or target.startswith(package + "."):
                found.append(OwnImport(target, node.lineno, lines[node.lineno - 1], id(node) in local))
    return found


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules an import statement names; ``from tracer_core import stages`` names tracer_core.stages."""
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    module = node.module or ""
    if module == "tracer_core":
        return [f"tracer_core.{one.name}" for one in node.names]
    return [module]


CORE_FILES = sorted(CORE.rglob("*.py"))


@pytest.mark.parametrize("path", CORE_FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_go_downwards(path):
    module = ".".join(path.relative_to(CORE).with_suffix("").parts)
    own = module.partition(".")[0]
    upward = [
        f"line {one.line}: {one.text.strip()}"
        for one in own_imports(path, "tracer_core")
        if rank(one.target) > rank(module) and not (one.local and own in SERVICES)
    ]
    assert upward == []


EVERY_FILE = sorted(ROOT.glob("packages/*/src/**/*.py"))


@pytest.mark.parametrize("path", EVERY_FILE, ids=lambda path: "/".join(path.parts[-3:]))
def test_local_imports_of_our_own_say_why(path):
    package = path.relative_to(ROOT).parts[3]
    silent = [
        f"line {one.line}: {one.text.strip()}"
        for one in own_imports(path, package)
        if one.local and not REASON.search(one.text)
    ]
    assert silent == []


@pytest.mark.parametrize("folder", BACKENDS, ids=lambda folder: folder.name)
def test_backends_import_only_the_plugin_api(folder):
    foreign = [
        f"{path.relative_to(folder)}:{one.line}: {one.text.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for one in own_imports(path, "tracer_core")
        if one.target != "tracer_core.plugin_api"
    ]
    assert foreign == []


def test_every_layer_entry_is_used_once():
    names = [name for layer in LAYERS for name in layer]
    assert len(names) == len(set(names))


def test_the_check_sees_an_upward_import(tmp_path):
    file = tmp_path / "logs.py"
    file.write_text("def f():\n    from tracer_core.api import compile\n")
    (found,) = own_imports(file, "tracer_core")
    assert found.local and rank(found.target) > rank("logs")


def test_the_public_module_of_backends_is_the_function():
    import tracer_core

    assert callable(tracer_core.backends) and tracer_core.backends.__module__ == "tracer_core.api"
