"""mypy, strict, over a file as users write it: what the documentation shows is right, and mistakes
are found.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full  # mypy reads torch: a minute

ROOT = Path(__file__).resolve().parents[2]

RIGHT = """
import torch
import tracer_core

model = torch.nn.Linear(2, 2)
x = torch.ones(2)

frozen = tracer_core.compile(model, options={"freeze": True})
frozen.refresh()
frozen.release_originals()
for table in tracer_core.compile(model, backend="auto").choices(wait=1.0):
    print(table)
tracer_core.compile(model, backend=["inductor", ("onnxrt", {"intra_op_threads": 1})]).choices()

plain: torch.nn.Linear = tracer_core.compile(model, mode="reduce-overhead", fullgraph=True)
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


third.refresh()
print(step(x) + other(x, 2) + third(x))
with tracer_core.disabled():
    print(step(x))
print([row.name for row in tracer_core.backends()], tracer_core.backend_options("inductor").modes)
print(tracer_core.explain(model)(x).graph_count, tracer_core.last_compile(plain)[0].seconds)
"""

WRONG = {
    'step("a")': "arg-type",
    'other(x, n="b")': "arg-type",
    "step(x).no_such_method()": "attr-defined",
    "step.refresh()": "attr-defined",
    "tracer_core.compile(model, fullgraf=True)": "call-overload",
    "tracer_core.compile(model, mode=3)": "call-overload",
    'tracer_core.compile(model, when="later")': "call-overload",
    'count: str = tracer_core.backend_options("inductor").options': "assignment",
}


def mypy(tmp_path: Path, text: str) -> str:
    file = tmp_path / "program.py"
    file.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(file)]
    command += ["--cache-dir", str(tmp_path.parent / "mypy_cache"), "--hide-error-context"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout


def test_what_the_documentation_shows_is_right(tmp_path):
    pytest.importorskip("mypy")
    assert "Success: no issues found" in mypy(tmp_path, RIGHT)


def test_mistakes_are_found(tmp_path):
    pytest.importorskip("mypy")
    first = RIGHT.count("\n") + 1
    errors = mypy(tmp_path, RIGHT + "\n".join(WRONG)).splitlines()
    for number, (line, kind) in enumerate(WRONG.items(), first):
        here = [error for error in errors if f":{number}: error:" in error]
        assert any(f"[{kind}]" in error for error in here), (line, here, errors)
