"""What people see first: one line that sums up, then at most a screen; in notebooks the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import weakref

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.debug.stages import StageRecords

#: Lines of a terminal.
SCREEN = 40


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(torch.relu(self.linear(x)))


def test_last_compile_begins_with_a_summary():
    fast = tracer_core.compile(torch.nn.Sequential(Block(), Block()))
    fast(torch.randn(3, 16)).sum().backward()
    records = tracer_core.last_compile(fast)
    first, *rows = str(records).splitlines()
    slowest = r"\(slowest: \w+ \d+ ms, \w+ \d+ ms, \w+ \d+ ms\)"
    assert re.match(rf"1 graph compiled in \d+\.\d\d s {slowest}, 0 graph breaks so far; ", first)
    assert len(rows) <= SCREEN < len(records)  # the rows of nested stages are in the table alone
    assert rows[0].startswith("trace ") and "table()" in rows[-1]
    assert len(records.table().splitlines()) == len(records)
    assert str(StageRecords(())) == "nothing was compiled"


def test_the_slowest_stages_hold_no_other_stage():
    fast = tracer_core.compile(Block(), backend="inductor")
    fast(torch.randn(3, 16))
    records = tracer_core.last_compile(fast)
    names = [name for name, _ in records.slowest]
    assert "inductor_lower" in names and "compile" not in names
    assert sum(seconds for _, seconds in records.slowest) <= records.seconds


def test_the_summary_counts_breaks_and_names_the_folder(tmp_path):
    program = (
        "import torch, tracer_core\n"
        "def f(x):\n    y = x + 1\n    tracer_core.graph_break()\n    return y * 2\n"
        "fast = tracer_core.compile(f, backend='eager')\nfast(torch.ones(3))\n"
        "print(tracer_core.last_compile(fast))"
    )
    env = {**os.environ, "TRACER_DEBUG": str(tmp_path / "files")}
    done = torch_server.run(["-c", program], env=env)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.endswith(f", 1 graph break so far; files: {tmp_path / 'files'}"), first


def test_explain_fits_on_a_screen():
    def long(x):
        for _ in range(60):
            x = torch.cos(x)
        return x

    report = tracer_core.explain(long)(torch.ones(3))
    assert len(str(report).splitlines()) <= SCREEN
    assert "39 more lines: `graphs` holds all of them" in str(report)
    assert str(report.graphs[0].graph).count("torch.cos") == 60


def shown_objects():
    @tracer_core.compile(backend="eager")
    def fast(x):
        return x + 1

    fast(torch.ones(2))
    return {
        "compile": fast,
        "last_compile": tracer_core.last_compile(fast),
        "explain": tracer_core.explain(fast)(torch.ones(2)),
        "backends": tracer_core.backends(),
        "backend_options": tracer_core.backend_options("inductor"),
        "doctor": tracer_core.doctor(smoke=False),
        "progress": tracer_core.progress(),
    }


@pytest.mark.parametrize(
    "name",
    ["compile", "last_compile", "explain", "backends", "backend_options", "doctor", "progress"],
)
def test_a_notebook_shows_the_text_escaped(name):
    shown = shown_objects()[name]
    page = shown._repr_html_()
    assert page.startswith("<pre") and page.count("<b>") == 1
    inside = page.removeprefix(page[: page.index(">") + 1]).removesuffix("</pre>")
    assert "<" not in inside.replace("<b>", "").replace("</b>", "")
    if name == "compile":
        assert "compiled: &lt;function shown_objects" in page and "graph compiled in" in page


def test_a_compiled_function_is_freed_with_its_last_reference():
    def f(x):
        return x + 1

    fast = tracer_core.compile(f, backend="eager")
    fast(torch.ones(2))
    reference = weakref.ref(fast)
    del fast
    assert reference() is None


def test_the_command_without_arguments_prints_what_there_is():
    done = subprocess.run(
        [sys.executable, "-m", "tracer_core"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stderr == ""
    for name in ("doctor", "backends", "options", "env", "limits", "cache"):
        assert re.search(rf"^    {name} +\w", done.stdout, re.MULTILINE), done.stdout
