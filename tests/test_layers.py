"""Imports go downwards, file by file, and without circles; a backend sees only the plug-in API."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "packages" / "frontend-tracer" / "src" / "tracer_core"

#: The folders (and files beside them) of a package, lowest first. A file imports what stands in
#: lower rows, and in its own folder; imports inside functions and for type checkers count, too.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "tracer_core": (
        ("errors",),
        ("graph_breaks",),
        ("limit_table", "variable_table"),
        ("limits",),
        ("contract", "torch_private"),
        ("ops",),
        ("hookspecs", "inputs", "options"),
        ("debug",),
        ("compiled_callable", "compiled_module"),
        ("markers",),
        ("switch",),
        ("argument_marks", "background", "registry", "storage"),
        ("engine_support",),
        ("guards",),
        ("bytecode",),
        ("fx_capture",),
        ("native_effects",),
        ("trace",),
        ("native_functions",),
        ("aot",),
        ("autoselect",),
        ("dispatch",),
        ("plugin_api",),
        ("bridges", "reconstruct"),
        ("execution",),
        ("explanation", "export", "preparation"),
        ("typed",),
        ("api", "cache"),
        ("diagnosis", "reporting", "saving", "verification"),
        ("__init__", "command"),
        ("__main__", "demo"),
        ("testing",),
    ),
    "inductor_backend": (
        ("environment", "limits"),
        ("__init__", "options", "plugin", "torch_private"),
        ("ir",),
        ("runtime",),
        ("kernels",),
        ("lowering", "schedule"),
        ("codegen", "debug", "passes"),
        ("compilation", "subgraphs"),
        ("autotune",),
        ("device_codegen",),
        ("kernel_table", "stages"),
        ("control_flow_steps", "kernel_stages"),
        ("rewrite_stages",),
        ("pipeline",),
        ("artifact", "native_library"),
    ),
}  # fmt: skip

BACKENDS = sorted(
    path
    for path in ROOT.glob("packages/*/src/*")
    if path.is_dir() and path.name != "tracer_core" and path.suffix != ".egg-info"
)

#: An import inside a function says why in a comment on its line: ``# heavy: triton``, ``# optional:
#: ...``.
REASON = re.compile(r"#\s*(?!type:|noqa)\w+")


@dataclass(frozen=True)
class OwnImport:
    """An import of our own package: what, on which line, with which comment, inside a function or
    not, for type checkers only or not."""

    target: str
    line: int
    text: str
    local: bool
    typing_only: bool


#: The fields of a statement that hold statements, or clauses of statements.
STATEMENTS = ("body", "orelse", "handlers", "finalbody", "cases")


def files_of(package: str) -> dict[str, Path]:
    """Module name -> file."""
    (folder,) = ROOT.glob(f"packages/*/src/{package}")
    actual = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        actual[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return actual


def layer(module: str) -> tuple[int, str]:
    """(row, folder) of a module in `LAYERS`."""
    package, *parts = module.split(".")
    names = (
        ".".join(parts[:2]),
        parts[0] if parts else "__init__",
    )  # a folder of its own row, or the one that it is in
    for name in names:
        for number, row in enumerate(LAYERS[package]):
            if name in row:
                return number, name
    raise AssertionError(f"{package}.{names[0]} has no place in tests/test_layers.py: LAYERS")


def own_imports(path: Path, package: str) -> list[OwnImport]:
    """What a file imports of `package`."""
    return [
        item
        for item in all_imports(path)
        if item.target == package or item.target.startswith(package + ".")
    ]


@functools.cache  # several tests look at each file
def all_imports(path: Path) -> list[OwnImport]:
    """What a file imports. Only statements are walked: no expression imports anything."""
    text = path.read_text()
    lines = text.splitlines()

    def inside(body: Iterable[ast.AST], local: bool, typing_only: bool) -> Iterator[OwnImport]:
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                its_text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                for target in targets(node):
                    yield OwnImport(target, node.lineno, its_text, local, typing_only)
                continue
            in_function = local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            for_types = typing_only or is_type_checking(node)
            for field in STATEMENTS:
                yield from inside(getattr(node, field, ()), in_function, for_types)

    return list(inside(ast.parse(text).body, local=False, typing_only=False))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """The modules that an import statement may name; ``from tracer_core import stages`` names
    tracer_core.debug.stages.
    """
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    return [f"{node.module or ''}.{name.name}" for name in node.names]


def module_of(target: str, modules: Mapping[str, Path]) -> str:
    """The module that holds what is imported."""
    return target if target in modules else target.rpartition(".")[0]


MODULES = {package: files_of(package) for package in LAYERS}
CASES = [(package, module) for package in LAYERS for module in MODULES[package]]


@pytest.mark.parametrize("package, module", CASES, ids=[module for _, module in CASES])
def test_imports_go_downwards(package, module):
    modules = MODULES[package]
    row, folder = layer(module)
    upward = []
    for own_import in own_imports(modules[module], package):
        other, its_folder = layer(module_of(own_import.target, modules))
        if other >= row and its_folder != folder:
            upward.append(f"line {own_import.line}: {own_import.text.strip()}")
    assert upward == []


#: The stages of a call, in the order of the tree: capture stands below lowering. The tracer calls
#: the recorder, so `trace` stands above `fx_capture`.
STAGES = (
    "contract", "ops", "guards", "bytecode", "fx_capture", "trace", "aot", "dispatch", "execution",
)  # fmt: skip


def test_stages_are_in_the_order_of_a_call():
    rows = [layer(f"tracer_core.{stage}")[0] for stage in STAGES]
    assert rows == sorted(set(rows))


@pytest.mark.parametrize("stage", STAGES)
def test_every_file_of_a_stage_stands_on_its_layer(stage):
    modules = [name for name in MODULES["tracer_core"] if name.startswith(f"tracer_core.{stage}.")]
    assert {layer(name) for name in modules} == {layer(f"tracer_core.{stage}")}


#: Folders that import nothing of one another, though no order of `LAYERS` says so.
APART = (
    ("inductor_backend.codegen.triton", "inductor_backend.codegen.cpp"),
    ("inductor_backend.codegen.cpp", "inductor_backend.codegen.triton"),
)


@pytest.mark.parametrize("importer, other", APART)
def test_folders_import_nothing_of_one_another(importer, other):
    package = importer.partition(".")[0]
    imports = {
        f"{module}: {own_import.text}"
        for module, path in MODULES[package].items()
        if module.startswith(importer + ".")
        for own_import in own_imports(path, package)
        if own_import.target.startswith(other + ".")
    }
    assert imports == set()


def test_the_pipeline_is_a_list():
    """What stages do stands beside it."""
    assert (
        len(MODULES["inductor_backend"]["inductor_backend.pipeline"].read_text().splitlines())
        <= 200
    )


PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/src/*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_imports_one_that_imports_it(package):
    """By any way, over imports inside functions and for type checkers, too. Files of one folder may
    import one another for type checkers: the parts of the tracer know the tracer."""
    modules = files_of(package)
    imports = {
        module: {
            target
            for item in own_imports(path, package)
            if (target := module_of(item.target, modules)) != module
            and not (item.typing_only and target.split(".")[:2] == module.split(".")[:2])
        }
        for module, path in modules.items()
    }
    while leaves := [module for module, wanted in imports.items() if not wanted & imports.keys()]:
        for module in leaves:
            del imports[module]
    while unused := imports.keys() - {item for wanted in imports.values() for item in wanted}:
        for module in unused:
            del imports[module]
    assert {module: wanted & imports.keys() for module, wanted in imports.items()} == {}


EVERY_FILE = sorted(ROOT.glob("packages/*/src/**/*.py"))


@pytest.mark.parametrize("path", EVERY_FILE, ids=lambda path: "/".join(path.parts[-3:]))
def test_local_imports_of_our_own_say_why(path):
    package = path.relative_to(ROOT).parts[3]
    silent = [
        f"line {own_import.line}: {own_import.text.strip()}"
        for own_import in own_imports(path, package)
        if own_import.local and not own_import.typing_only and not REASON.search(own_import.text)
    ]
    assert silent == []


@pytest.mark.parametrize("folder", BACKENDS, ids=lambda folder: folder.name)
def test_backends_import_only_the_plugin_api(folder):
    foreign = [
        f"{path.relative_to(folder)}:{item.line}: {item.text.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for item in own_imports(path, "tracer_core")
        if not item.typing_only and item.target.rpartition(".")[0] != "tracer_core.plugin_api"
    ]
    assert foreign == []


@pytest.mark.parametrize("package", LAYERS)
def test_every_layer_entry_is_used_once(package):
    names = [name for row in LAYERS[package] for name in row]
    assert len(names) == len(set(names)) and {
        layer(module)[1] for module in MODULES[package]
    } == set(names)


def test_the_check_sees_an_upward_import(tmp_path):
    file = tmp_path / "logs.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tracer_core.execution import compiled_function\n"
        "def f():\n    from tracer_core.api import compile\n"
    )
    late, local = own_imports(file, "tracer_core")
    assert late.typing_only and local.local and not local.typing_only
    assert (
        layer(module_of(late.target, MODULES["tracer_core"]))
        > layer("tracer_core.debug.logs")
        < layer("tracer_core.api")
    )
    assert module_of(local.target, MODULES["tracer_core"]) == "tracer_core.api"


def test_the_public_module_of_backends_is_the_function():
    import tracer_core

    assert callable(tracer_core.backends) and tracer_core.backends.__module__ == "tracer_core.api"
