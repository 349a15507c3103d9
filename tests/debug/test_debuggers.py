"""A debugger stops in the user's frame of a compiled function, with its variables."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.errors import TracerError

PROGRAM = """
import pdb, torch, tracer_core

def scaled(value, factor):
    inner = value * factor
    STOP
    return inner + 1

def program(x):
    total = x.sin()
    for step in range(3):
        total = total + step
        if step == 1:
            STOP
    return scaled(total, 2.0).sum()

fast = tracer_core.compile(program, backend="inductor")
print("result", round(float(fast(torch.zeros(3))), 3))
"""


@pytest.mark.parametrize("stop", ["breakpoint()", "pdb.set_trace()"])
def test_pdb_reads_variables_and_steps(tmp_path, stop):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("STOP", stop))
    commands = ["p 'in', step, total.tolist()", "next", "next", "p 'next', step", "continue",
                "p 'inner', factor, inner.tolist()", "up", "p 'up', step", "continue"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, path], input="\n".join(commands) + "\n", timeout=240,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = done.stdout
    assert all(
        re.search(rf"> .*program\.py\(\d+\){name}\(\)", out) for name in ("program", "scaled")
    )
    assert "('in', 1, [1.0, 1.0, 1.0])" in out and "('next', 2)" in out
    assert "('inner', 2.0, [6.0, 6.0, 6.0])" in out and "('up', 2)" in out
    assert "result 21.0" in out
    assert re.search(
        rf"program runs eagerly: {re.escape(stop.removeprefix('pdb.'))} at .*program.py:14 in program stops"
        " in the program's own frames; remove it to compile",
        done.stderr,
    )


def test_fullgraph_names_the_line():
    fast = tracer_core.compile(in_a_helper, backend="eager", fullgraph=True)
    with pytest.raises(TracerError, match=r"breakpoint\(\) at .*test_debuggers.py:\d+ in helper"):
        fast(torch.ones(2))


class Stops:
    """A hook of `breakpoint` that notes variables and calling functions of this file."""

    def __init__(self):
        self.seen = []

    def __call__(self, *args, **kwargs):
        frame = sys._getframe(1)
        variables, names = dict(frame.f_locals), []
        while frame is not None:
            if frame.f_code.co_filename == __file__:
                names.append(frame.f_code.co_name)
            frame = frame.f_back
        self.seen.append((variables, names))


@pytest.fixture
def stops(monkeypatch):
    result = Stops()
    monkeypatch.setattr(sys, "breakpointhook", result)
    return result


def after_a_break(x):
    y = x.sin()
    tracer_core.graph_break()
    z = y + 1
    breakpoint()
    return z


def behind_a_branch(x):
    y = x.cos()
    if y.sum() > 0:
        breakpoint()
    return y


def helper(value):
    doubled = value * 2
    breakpoint()
    return doubled


def in_a_helper(x):
    y = x.sin()
    return helper(y) + 1


def in_a_generator(x):
    def parts():
        for number in range(2):
            yield x + number
            breakpoint()

    return list(parts())


@pytest.mark.parametrize(
    ("program", "names", "functions"),
    [
        (after_a_break, {"x", "y", "z"}, ["after_a_break"]),
        (behind_a_branch, {"x", "y"}, ["behind_a_branch"]),
        (in_a_helper, {"value", "doubled"}, ["helper", "in_a_helper"]),
        (in_a_generator, {"x", "number"}, ["parts", "in_a_generator"]),
    ],
)
def test_a_hook_of_the_user_sees_the_variables(stops, program, names, functions):
    fast = tracer_core.compile(program, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        del stops.seen[:]
        torch.testing.assert_close(fast(x), program(x))
        seen, expected = stops.seen[: len(stops.seen) // 2], stops.seen[len(stops.seen) // 2 :]
        assert len(seen) == len(expected) > 0
        for variables, called in seen:
            assert set(variables) == names and called[: len(functions)] == functions


MESSAGES = """
import logging, sys, warnings, torch, tracer_core
logging.basicConfig(format="%(filename)s:%(lineno)d %(funcName)s %(message)s", stream=sys.stderr)
warnings.simplefilter("always")
log = logging.getLogger("program")

def helper(t):
    warnings.warn("here")
    warnings.warn("my caller", stacklevel=2)
    log.warning("in the helper")
    return t + 1

def program(x):
    warnings.warn("in the program")
    warnings.warn("the call", stacklevel=2)
    log.warning("shape %s", tuple(x.shape))
    for _ in range(2):
        x = helper(x)
    with torch.no_grad():
        log.warning("inside with")
    return x.sum()

run = program if sys.argv[1] == "eager" else tracer_core.compile(program, backend="inductor")
for _ in range(3):
    run(torch.ones(3))
"""


def test_warnings_and_log_records_have_the_users_file_and_line(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(MESSAGES))
    eager, compiled = (
        torch_server.run([path, how], timeout=240).stderr.splitlines()
        for how in ("eager", "compiled")
    )
    assert "program.py:10 helper in the helper" in eager
    assert any(line.endswith("program.py:18: UserWarning: my caller") for line in eager)
    assert [line for line in compiled if not line.startswith("program: ")] == eager
