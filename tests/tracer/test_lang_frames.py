"""What a function can learn about its own frame: eval, exec, locals, dir, and frame objects."""

from __future__ import annotations

import inspect
import sys
import traceback

import pytest
import torch

import tracer_core
from tests.tracer.twin import same
from tracer_core.errors import TracerError

X = torch.arange(3.0)
evaluate, variables, names = eval, locals, dir


def test_eval_sees_the_variables_of_its_function():
    def f(x, n):
        scale = n + 1  # noqa: F841
        return x * eval("scale + n"), eval("x + n", None, {"x": 1, "n": 2}), eval("n", {"n": 7})

    same(f, (X, 1), (X, 2), (X, 1), breaks=None)


def test_exec_sees_the_variables_of_its_function_and_changes_none():
    def f(x, n):
        found = {}
        exec("y = n + 1; found['y'] = y; n = 9")
        return x * found["y"], n

    same(f, (X, 1), (X, 2), breaks=None)


def test_eval_after_a_break_inside_a_call():
    def inner(x, unused):
        tracer_core.graph_break()
        return x + eval("unused * 2")

    def f(x):
        return inner(x * 2, 3) + 1

    same(f, (X,), (X + 1,), breaks=None)


def test_variables_asked_for_under_another_name():
    def f(x, n):
        unread = n + 1  # noqa: F841
        y = x * 2
        return sorted(variables()), sorted(names()), evaluate("unread + n"), y

    same(f, (X, 1), (X, 2), (X, 1), graphs=0, breaks=None)


def test_under_another_name_after_a_break_is_an_error_not_a_wrong_answer():
    def f(x, n):
        unread = n + 1  # noqa: F841
        tracer_core.graph_break()
        return x * 2, variables()

    with pytest.raises(TracerError, match="under another name"):
        tracer_core.compile(f, backend="eager")(X, 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: sys._getframe(1).f_code.co_name,
        lambda: inspect.currentframe().f_back.f_code.co_name,
        lambda: [entry.function for entry in inspect.stack()[:2]],
        lambda: [entry.name for entry in traceback.extract_stack()[-2:]],
        lambda: sorted(sys._getframe(1).f_locals),
    ],
)
def test_frames_are_those_of_the_program(ask):
    def f(x):
        local = x + 1
        return local, ask()

    same(f, (X,), (X,), graphs=0, breaks=None)


def test_a_function_that_reads_frames_does_not_break():
    def f(x):
        tracer_core.graph_break()
        return x, sys._getframe().f_code.co_name

    same(f, (X,), (X,), graphs=0, breaks=None)
