"""mypy, strict, over a file as users write it, and pyright where it is installed: what the documentation
shows is right, and mistakes are found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracer_core
from tracer_core.typed import AutoOptions, InductorOptions

pytestmark = pytest.mark.full  # mypy reads torch: a minute

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
import torch
import tracer_core
from tracer_core.typed import InductorOptions

model = torch.nn.Linear(2, 2)
x = torch.ones(2)

frozen = tracer_core.compile(model, options={"freeze": True})
frozen.refresh()
frozen.release_originals()
for table in tracer_core.compile(model, backend="auto").choices(wait=1.0):
    print(table)
tracer_core.compile(model, backend=["inductor", ("onnxrt", {"intra_op_threads": 1})]).choices()

plain: torch.nn.Linear = tracer_core.compile(model, mode="reduce-overhead", fullgraph=True)
declared: torch.nn.Linear = tracer_core.compile(model, options={"freeze": True, "numerics": "eager"})
print(frozen.weight, frozen.release_originals() + 1, frozen(x))
own: torch.nn.Linear = tracer_core.compile(model, backend="mine", mode="quick")
tracer_core.compile(model, backend="onnxrt", options={"providers": ["CPUExecutionProvider"]}).refresh()
tracer_core.compile(model, backend="auto", options={"wait": True, "candidates": ["inductor"]})
checked: InductorOptions = {"memory_budget": 0.5}
tracer_core.compile(model, options=checked)
same: torch.nn.Linear = tracer_core.original(plain)


@tracer_core.compile
def step(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@tracer_core.compile(fullgraph=True, backend="eager", when="background")
def other(x: torch.Tensor, n: int = 1) -> torch.Tensor:
    return x + n


@tracer_core.compile(options={"freeze": True})
def third(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@tracer_core.compile(backend="auto")
def fourth(x: torch.Tensor) -> torch.Tensor:
    return x * 2


third.refresh()
print(fourth.choices(wait=1.0)[0].chosen, fourth(x) + 1)
print(step(x) + other(x, 2) + third(x))
with tracer_core.disabled():
    print(step(x))
print([row.name for row in tracer_core.backends()], tracer_core.backend_options("inductor").modes)
print(tracer_core.explain(model)(x).graph_count, tracer_core.last_compile(plain)[0].seconds)
"""

#: A line -> the kinds of error that mypy and pyright report.
WRONG = {
    'step("a")': ("arg-type", "reportArgumentType"),
    'other(x, n="b")': ("arg-type", "reportArgumentType"),
    'third(x, "b")': ("call-arg", "reportCallIssue"),
    'fourth.choices(wait="long")': ("arg-type", "reportArgumentType"),
    "frozen.refresh(1)": ("call-arg", "reportCallIssue"),
    "step(x).no_such_method()": ("attr-defined", "reportAttributeAccessIssue"),
    "step.refresh()": ("attr-defined", "reportFunctionMemberAccess"),
    "tracer_core.compile(model, fullgraf=True)": ("call-overload", "reportCallIssue"),
    "tracer_core.compile(model, mode=3)": ("call-overload", "reportArgumentType"),
    'tracer_core.compile(model, mode="max_autotune")': ("call-overload", "reportArgumentType"),
    'tracer_core.compile(model, when="later")': ("call-overload", "reportArgumentType"),
    'tracer_core.compile(model, dynamic="auto")': ("call-overload", "reportArgumentType"),
    'tracer_core.compile(model, options={"frezee": True})': ("call-overload", "reportArgumentType"),
    'tracer_core.compile(model, options={"freeze": "yes"})': (
        "call-overload",
        "reportArgumentType",
    ),
    "tracer_core.explain(model, x)": ("arg-type", "reportArgumentType"),
    'count: str = tracer_core.backend_options("inductor").options': (
        "assignment",
        "reportAssignmentType",
    ),
}


def mypy(tmp_path: Path, text: str) -> list[str]:
    """Returns mypy's errors, as ``line: kind``."""
    pytest.importorskip("mypy")
    command = ["--strict", "--config-file=", "--cache-dir", str(tmp_path.parent / "mypy_cache")]
    return checked(tmp_path, text, "mypy", command, r":(\d+): error: .*\[([\w-]+)\]$")


def pyright(tmp_path: Path, text: str) -> list[str]:
    """The same of pyright, as ``basedpyright`` packs it with its own Node (75 MB, so not in CI)."""
    pytest.importorskip("basedpyright")
    settings = {"typeCheckingMode": "standard", "pythonPath": sys.executable}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    pattern = r":(\d+):\d+ - error: [\s\S]*?\((report\w+)\)$"
    return checked(tmp_path, text, "basedpyright", ["--pythonpath", sys.executable], pattern)


def checked(folder: Path, text: str, module: str, options: list[str], pattern: str) -> list[str]:
    file = folder / "program.py"
    file.write_text(text)
    command = [sys.executable, "-m", module, *options, str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "rror" in done.stdout or "Success" in done.stdout, done.stdout + done.stderr
    return [f"{line}: {kind}" for line, kind in re.findall(pattern, done.stdout, re.MULTILINE)]


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_what_the_documentation_shows_is_right(tmp_path, checker):
    assert checker(tmp_path, RIGHT) == []


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_mistakes_are_found(tmp_path, checker):
    first = RIGHT.count("\n") + 1
    errors = checker(tmp_path, RIGHT + "\n".join(WRONG))
    which = [mypy, pyright].index(checker)
    for number, (line, kinds) in enumerate(WRONG.items(), first):
        here = [error for error in errors if error.startswith(f"{number}: ")]
        assert f"{number}: {kinds[which]}" in here, (line, here, errors)


@pytest.mark.parametrize(
    ("backend", "typed"), [("inductor", InductorOptions), ("auto", AutoOptions)]
)
def test_the_dict_of_options_has_the_fields_of_the_dataclass(backend, typed):
    rows = {row.name for row in tracer_core.backend_options(backend).options}
    assert set(typed.__annotations__) == rows
