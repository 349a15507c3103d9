"""Exceptions that leave the compiled function: captured up to the raise, with the user's
traceback.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import traceback

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Refused(ValueError):
    def __init__(self, text, x):
        super().__init__(text)
        self.x = x


def check(x, n):
    y = x * 2
    if n > 2:
        raise Refused(f"{n} is too large", y)
    return y + n


def outer(x, n):
    z = x + 1
    return check(z, n) * 3


def inside_native(x, n):
    y = x + 1
    return sorted([3, 1], key=lambda i: i / n), y


def entries(error):
    """(function, text of the line) of a traceback's entries that are this file's."""
    actual = traceback.extract_tb(error.__traceback__)
    return [(item.name, item.line) for item in actual if item.filename == __file__]


def raised_by(fn, *args):
    with pytest.raises(Exception) as caught:
        fn(*args)
    return caught.value


def test_raise_from_a_nested_call_is_captured_once():
    seen = same(outer, (X, 1), (X, 5), (Y, 5), (Y, 5), (X, 1), graphs=2)
    assert len(seen.counter.recompiles) == 1


def test_the_exception_carries_the_tensors_of_the_graph():
    compiled = tracer_core.compile(outer, backend="eager")
    for x in (X, Y, X):
        error = raised_by(compiled, x, 7)
        assert torch.equal(error.x, (x + 1) * 2)


def test_traceback_shows_the_users_lines():
    compiled = tracer_core.compile(outer, backend="eager")
    want = entries(raised_by(outer, X, 9))
    for _ in range(4):
        got = entries(raised_by(compiled, X, 9))
        assert got[-2:] == want[-2:] == [
            ("outer", "return check(z, n) * 3"), ("check",
            'raise Refused(f"{n} is too large", y)')]  # fmt: skip


def test_traceback_hides_the_interpreter():
    compiled = tracer_core.compile(outer, backend="eager")
    error = raised_by(compiled, X, 9)
    files = [item.filename for item in traceback.extract_tb(error.__traceback__)]
    assert not [
        name for name in files if "/interpreter/" in name or name.startswith("<tracer_core")
    ]


class Layer(torch.nn.Module):
    def forward(self, x, how):
        return FAILURES[how](x + 1)


def _after_a_break(x):
    tracer_core.graph_break()
    return inside_native(x, 0)


def _in_another(x):
    return tracer_core.compile(outer, backend="eager")(x, 9)


FAILURES = {
    "a raise": lambda x: outer(x, 9),
    "an operator": lambda x: x @ torch.ones(17, 17),
    "data": lambda x: x[torch.tensor([70])],
    "after a break": _after_a_break,
    "below native code": lambda x: inside_native(x, 0),
    "another compiled function": _in_another,
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("make", [Layer, lambda: lambda x, how: Layer()(x, how)])
def test_at_most_one_frame_of_ours_is_between_two_of_the_users(how, make):
    run = make()
    want = entries(raised_by(run, X, how))
    compiled = tracer_core.compile(run, backend="inductor")
    for _ in range(3):
        error = raised_by(compiled, X, how)
        files = [item.filename for item in traceback.extract_tb(error.__traceback__)]
        ours = ["/tracer_core/" in name or name.startswith("<tracer_core") for name in files]
        assert not any(a and b for a, b in itertools.pairwise(ours)), files
        assert not ours[-1] and entries(error) == want
        assert error.__context__ is None


def test_raise_below_native_code():
    same(inside_native, (X, 2), (X, 0), (Y, 0), graphs=2)


def test_error_of_an_operator():
    same(lambda x, y: (x + 1) @ (y + 1), (X, X), (X, Y), graphs=2, kinds=("operator_failed",))


def test_effects_before_the_raise_happen_once():
    def make():
        log = []

        def f(x, n):
            log.append(n)
            x.add_(1)
            if n:
                raise KeyError(n)
            return x

        return f, log

    compare_with_eager(make, (X, 0), (X, 1), (Y, 1), (Y, 1), (X, 0), graphs=2, breaks=0)


def test_finally_and_with_run_before_it_leaves():
    def make():
        log = []

        class Manager:
            def __enter__(self):
                log.append("in")

            def __exit__(self, kind, value, trace):
                log.append((kind.__name__ if kind else None, str(value)))

        def f(x, n):
            try:
                with Manager():
                    if n == 3:
                        raise ValueError(f"n is {n}")
                    return x + n
            finally:
                log.append("finally")

        return f, log

    compare_with_eager(make, (X, 3), (X, 1), (X, 3), (Y, 3))


def test_cause_and_context_leave_with_it():
    def f(x, n):
        try:
            x + 1
            raise KeyError(n)
        except KeyError as error:
            raise ValueError("outer") from error

    compiled = tracer_core.compile(f, backend="eager")
    for n in (1, 2, 1, 2):
        error = raised_by(compiled, X, n)
        assert type(error) is ValueError
        assert type(error.__cause__) is KeyError and error.__cause__.args == (n,)
        assert error.__context__ is error.__cause__


def test_reraise_keeps_the_innermost_line():
    def f(x):
        try:
            check(x, 9)
        except Refused:
            raise

    compiled = tracer_core.compile(f, backend="eager")
    want = [name for name, _ in entries(raised_by(f, X))]
    for _ in range(3):
        got = [name for name, _ in entries(raised_by(compiled, X))]
        assert got[-2:] == want[-2:] == ["f", "check"]


def test_exception_after_a_break():
    def f(x, n):
        y = x * 2
        tracer_core.graph_break()
        z = y + 1
        if n:
            raise RuntimeError(f"late {n}")
        return z

    same(f, (X, 0), (X, 1), (Y, 1), (X, 0), breaks=1, kinds=("requested",))


def test_keyboard_interrupt_and_system_exit_leave():
    def f(x, kind):
        y = x + 1
        if kind is not None:
            raise kind("stop")
        return y

    compiled = tracer_core.compile(f, backend="eager")
    for kind in (KeyboardInterrupt, SystemExit, KeyboardInterrupt):
        with pytest.raises(kind, match="stop"):
            compiled(X, kind)
    assert torch.equal(compiled(X, None), X + 1)


def test_fullgraph_does_not_call_a_raise_a_break():
    compiled = tracer_core.compile(outer, backend="eager", fullgraph=True)
    with CaptureCounter() as counter:
        assert type(raised_by(compiled, X, 9)) is Refused
        assert type(raised_by(compiled, Y, 9)) is Refused
    assert counter.breaks == [] and len(counter.graphs) == 1


def test_a_failing_operator_prints_nothing_of_torchs_own(caplog):
    compiled = tracer_core.compile(lambda x, y: x @ y, backend="eager")
    assert type(raised_by(compiled, X, Y)) is RuntimeError
    assert [item for item in caplog.records if item.name.startswith("torch._subclasses")] == []


def long(x):
    a = x + 1
    b = a * 2 + a.sum() - x.mean() * 3
    actual = {
        "a": a,
        "b": b,
        "c": (a + b, a - b, a * b, a / 2, b.sin() + b.cos() + b.exp()),
        "d": [a, b],
    }
    raise Refused(f"{len(actual)} are too many: {[len(value) for value in actual.values()]}", b)


def short():
    raise ValueError


def caught(x):
    try:
        long(x)
    except Refused as error:
        kept = error
    try:
        short()
    except ValueError as error:
        return x * 2, kept, error


def codes(error):
    """The codes of a traceback's frames, checked: a table of positions is exactly as long as its
    code.
    """
    actual = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        assert len(list(code.co_positions())) == len(code.co_code) // 2, code
        assert [*code.co_lines()][-1][1] == len(code.co_code), code
        actual.append(code.co_name)
    return actual


def test_code_shown_in_a_traceback_is_as_long_as_its_table_of_positions():
    """CPython 3.11 writes the whole table into an array as long as the code while a profiler or
    debugger is on.
    """
    _, first, second = tracer_core.compile(caught, backend="eager")(X)
    assert codes(first) == ["caught", "long"] and codes(second) == ["caught", "short"]
    assert entries(second)[1] == ("short", "raise ValueError")


def profiled():
    """Runs in a process of its own, whose allocator finds what is written past a block."""
    compiled = tracer_core.compile(caught, backend="eager")
    sys.setprofile(lambda *event: None)
    for _ in range(5):
        tracer_core.reset()
        assert [codes(error)[-1] for error in compiled(X)[1:]] == ["long", "short"]
    sys.setprofile(None)
    gc.collect()


def test_a_profiler_sees_tracebacks_and_corrupts_no_memory():
    command = [sys.executable, "-c", f"from {__name__} import profiled; profiled(); print('done')"]
    done = subprocess.run(command, env={**os.environ, "PYTHONMALLOC": "debug"},
    capture_output=True, text=True,
                          timeout=120)  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr[-2000:]


def _fails(x):
    x = x * 2
    raise ValueError("deep")


def _lines(x):
    try:
        _fails(x)
    except ValueError as error:
        entry, actual = error.__traceback__, []
        while entry is not None:
            actual.append((entry.tb_frame.f_code.co_name, entry.tb_lineno))
            entry = entry.tb_next
        return x + len(actual), actual


def _line_number(x):
    try:
        _fails(x)
    except ValueError as error:
        return x + error.__traceback__.tb_lineno


def test_tracebacks_that_the_program_looks_into_are_its_own():
    for program in (_lines, _line_number):
        compiled = tracer_core.compile(program, backend="eager")
        for _ in range(2):
            assert str(compiled(torch.ones(2))) == str(program(torch.ones(2)))
