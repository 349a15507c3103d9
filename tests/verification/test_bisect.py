"""`tracer-core bisect`: faults put into a backend are found and named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.verification.test_repro import PLANTED
from tracer_core.errors import TracerError
from tracer_core.verification.bisect import Outcome, bisect, smallest

CHECKED = """
import torch, tracer_core

def first(x):
    return (x.sin() + 1).sum(-1)

def second(x, w):
    h = torch.softmax(x @ w, -1)
    return torch.tanh(h) * 2 + h.cos()

x, w = torch.randn(8, 16), torch.randn(16, 8)
tracer_core.compile(first)(x)
tracer_core.verify(tracer_core.compile(second), x, w).raise_if_wrong()
"""

#: Where a kernel computes several operators, the last one's result has the wrong sign.
WRONG_FUSION = """
import dataclasses
import inductor_backend.pipeline
from inductor_backend import kernel_stages
from inductor_backend.lowering.context import make

right = kernel_stages.kernel_body

def wrong(program, domain, loops, *rest):
    if len(loops) > 1 and "cos" in {item.op for loop in loops for item in loop.origins}:
        *others, last = loops
        stores = [dataclasses.replace(item, value=make("neg", item.value)) for item in last.stores]
        loops = [*others, dataclasses.replace(last, stores=tuple(stores))]
    return right(program, domain, loops, *rest)

kernel_stages.kernel_body = wrong
"""


def lines_of(tmp_path, text):
    script = tmp_path / "program.py"
    script.write_text(text)
    return list(bisect(str(script), [], 120.0))


@pytest.mark.full
def test_a_wrong_lowering_is_named(tmp_path):
    (tmp_path / "program.py").write_text(PLANTED + CHECKED)
    command = [sys.executable, "-m", "tracer_core", "bisect", "program.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fails as it is: WRONG output: torch.float32")
    assert "ok    with lowering and autograd (backend 'aten_eager')" in lines
    assert lines[-7] == (
        "the stage that makes the difference: kernels of single operators"
        " (fuse=False, inline=False, numerics='eager')"
    )
    assert lines[-6] == "graphs that must be compiled for it: graph_1"
    assert (
        lines[-4] == "  aten.tanh.default" and lines[-2] == "  kernel fused_tanh_0 of graph_1_part0"
    )
    assert lines[-3] == lines[-1] == "    program.py:12 in second"


@pytest.mark.full
def test_a_wrong_fusion_is_named(tmp_path):
    lines = lines_of(tmp_path, WRONG_FUSION + CHECKED)
    at = lines.index("the stage that makes the difference: fusion (fuse=True)")
    assert lines[at - 1].startswith("FAILS with fusion (fuse=True): WRONG output")
    assert lines[at + 1] == "graphs that must be compiled for it: graph_1"
    assert lines[at + 2].startswith("it fails from fusion ") and "TRACER_FUEL=" in lines[at + 2]
    assert lines[at + 3].startswith("  kernel fused_") and "cos" in lines[at + 3]


@pytest.mark.full
def test_a_backend_that_fails_though_the_program_goes_on(tmp_path):
    fails = """
import torch, tracer_core
from tracer_core.plugin_api import Backend, hookimpl

def compile_graph(graph, spec):
    if any("cos" in str(node.target) for node in graph.graph.nodes):
        raise RuntimeError("no kernel for cos")
    return lambda inputs: graph(*inputs)

x = torch.ones(3)
print(tracer_core.compile(lambda x: x.sin() + x.cos() * 2, backend=Backend("mine", compile_graph))(x))
"""
    lines = lines_of(tmp_path, fails)
    assert "no kernel for cos" in lines[0]
    assert (
        "the stage that makes the difference: the script's own backend, mode and options" in lines
    )
    assert "  aten.cos.default" in lines and "  aten.sin.default" not in lines


def test_a_script_that_does_not_fail(tmp_path):
    with pytest.raises(TracerError, match="ends without an error, so there is nothing to search"):
        lines_of(tmp_path, "print(1)")


def test_a_script_that_is_not_there(tmp_path):
    with pytest.raises(TracerError, match="there is no file"):
        next(bisect(str(tmp_path / "program.py"), [], 120.0))


def test_a_script_that_fails_in_eager_mode(tmp_path):
    with pytest.raises(TracerError, match="fails in eager mode, too"):
        lines_of(tmp_path, "raise SystemExit('no data')")


@pytest.mark.parametrize("needed", [["a"], ["h"], ["b", "g"], ["a", "d", "e"], list("abcdefgh")])
def test_the_smallest_part_that_fails(needed):
    tried = []

    def run(part):
        tried.append(part)
        return Outcome("failed" if set(needed) <= set(part) else "", [])

    assert smallest("abcdefgh", run) == needed
    assert len(tried) < 50
