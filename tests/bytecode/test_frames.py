"""What a program can learn about frames, and what it replaces under them: eval, exec, locals, dir,
frame objects, tracebacks, hooks, builtins and modules.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import inspect
import io
import sys
import traceback
import types
import unittest.mock

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
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


def _misspelt():
    number = 7  # noqa: F841
    return numbr


def _frames_of(error):
    entry, actual = error.__traceback__.tb_next, []
    while entry is not None:
        actual.append((entry.tb_frame.f_code.co_name, entry.tb_lineno, entry.tb_frame.f_lineno,
                      entry.tb_frame.f_locals.get("number")))  # fmt: skip
        entry = entry.tb_next
    return actual


def _formatted(error):
    return traceback.format_exc().partition("_misspelt")[2]


def _hooked(error):
    with contextlib.redirect_stderr(io.StringIO()) as out:
        sys.__excepthook__(type(error), error, error.__traceback__)
    return out.getvalue().partition("_misspelt")[2]


@pytest.mark.parametrize("look", [_frames_of, _formatted, _hooked])
def test_a_program_looks_into_its_traceback(look):
    def f(x, n):
        y = x * n
        try:
            return y, _misspelt()
        except NameError as error:
            return y, look(error)

    same(f, (X, 1), (X, 2), (X, 1), graphs=0, breaks=None)


def test_a_traceback_after_a_break():
    def f(x, n):
        tracer_core.graph_break()
        try:
            return _misspelt()
        except NameError as error:
            return x * n, _frames_of(error)

    same(f, (X, 1), (X, 2), (X, 1), graphs=0, breaks=None)


def test_the_frames_of_an_error_that_leaves_have_globals():
    def f(x, number):
        tracer_core.graph_break()
        if number:
            x = x + number
            raise ValueError(x + number)
        return x

    fast = tracer_core.compile(f, backend="eager")
    for number in (1, 2, 2, 3):
        with pytest.raises(ValueError) as caught:
            fast(X, number)
        *_, (frame, _) = traceback.walk_tb(caught.value.__traceback__)
        assert frame.f_code.co_name == "f"
        assert frame.f_globals is globals()


def _kept_traceback():
    try:
        raise OSError
    except OSError as error:
        return error.__traceback__


def test_an_exception_with_the_traceback_of_another():
    def f(x):
        kept = _kept_traceback()
        try:
            raise IndexError().with_traceback(kept)
        except IndexError as error:
            return x + 1, error.__traceback__ is kept, error.__traceback__.tb_next is kept

    same(f, (X,), (X,), graphs=0, breaks=None)


def test_an_exception_that_is_given_a_traceback_leaves_with_it():
    def f(x):
        kept = _kept_traceback()
        error = IndexError().with_traceback(kept)
        return x + 1, error, error.__traceback__ is kept

    for _, error, is_kept in map(tracer_core.compile(f, backend="eager"), (X, X)):
        assert is_kept
        assert traceback.extract_tb(error.__traceback__)[-1].name == "_kept_traceback"


@pytest.mark.parametrize("set_hook", [sys.settrace, sys.setprofile])
def test_a_hook_sees_the_lines_and_calls_of_the_program(set_hook):
    before = sys.gettrace() if set_hook is sys.settrace else sys.getprofile()

    def inner(x):
        y = x + 1
        return y

    def f(x):
        seen = []

        def hook(frame, event, arg):
            if frame.f_code is inner.__code__:
                seen.append((event, frame.f_lineno))
            return hook

        set_hook(hook)
        try:
            y = inner(x)
        finally:
            set_hook(before)
        return y, seen

    same(f, (X,), (X,), graphs=0, breaks=None)


def test_a_generator_that_reads_its_frame_when_it_is_closed():
    def f(x):
        actual = []

        def counted():
            try:
                yield 1
            finally:
                actual.append(sys._getframe().f_code.co_name)

        result = counted()
        next(result)
        del result
        return x + 1, actual

    same(f, (X,), (X,), graphs=0, breaks=None)


# -- replaced builtins and modules --


def _seven(value):
    return 7


def test_a_program_replaces_a_builtin():
    @contextlib.contextmanager
    def other_len():
        old, builtins.len = builtins.len, _seven
        try:
            yield
        finally:
            builtins.len = old

    def f(x):
        before = len([1, 2])
        with other_len():
            inside = len([1, 2])
        return x * before + inside, len([1, 2])

    def with_break(x):
        tracer_core.graph_break()
        return f(x)

    same(f, (X,), (X,), graphs=0, breaks=None)
    same(with_break, (X,), (X,), (X,), breaks=None)


def test_a_builtin_is_replaced_around_compiled_code():
    def f(x, values):
        tracer_core.graph_break()
        return x * len(values) + sum(map(abs, values))

    def patched(x):
        y = f(x, [1, -2])
        with unittest.mock.patch.object(builtins, "len", _seven):
            return y, f(x, [1, -2]), fast(x, [1, -2])

    fast = tracer_core.compile(f, backend="eager")
    for _ in range(4):
        fast(X, [1, -2])
        same(patched, (X,), (X,), breaks=None)
    assert torch.equal(fast(X, [1, -2]), f(X, [1, -2]))


def test_functions_keep_the_builtins_they_were_made_with():
    names = {"__builtins__": {"len": _seven}, "torch": torch}
    exec("def f(x):\n return x * len([])", names)
    function = names["f"]
    names["__builtins__"] = builtins

    def with_break(x):
        tracer_core.graph_break()
        return function(x) + len([])

    same(function, (X,), (X,))
    same(with_break, (X,), (X,), breaks=1)


def test_globals_that_make_what_is_missing():
    class Made(dict):
        def __missing__(self, name):
            return int(name.removeprefix("number_"))

    function = eval("lambda x: x + number_3 * number_4", Made())

    def f(x):
        return function(x) * 2

    same(function, (X,), (X,), breaks=None)
    same(f, (X,), (X,), breaks=None)


def test_a_function_made_with_a_namespace_that_is_changed_later():
    def f(x):
        names = {"number": 2}
        function = types.FunctionType((lambda: number).__code__, names)
        tracer_core.graph_break()
        names["number"] = 3
        return x * function()

    same(f, (X,), (X,), breaks=None)


def test_a_program_replaces_a_module():
    other = types.ModuleType("collections")
    other.deque = collections.UserList

    def f(x):
        old, sys.modules["collections"] = sys.modules["collections"], other
        try:
            from collections import deque

            return x + len(deque([1, 2])), deque.__name__
        finally:
            sys.modules["collections"] = old

    same(f, (X,), (X,), graphs=0, breaks=None)


# -- recursion --


def test_a_trace_has_less_room_for_recursion_than_the_program():
    def f(x, depth):
        item, other = [], []
        for _ in range(depth):
            item, other = [item], [other]
        try:
            return x + (item == other)
        except RecursionError:
            return x - 1

    deepest = next(n for n in range(sys.getrecursionlimit(), 0, -10) if f(0, n) == 1)
    same(f, (X, deepest - 30), (X, deepest - 30), graphs=None, breaks=None)


def test_values_that_are_nested_too_deep_to_be_made_again():
    def f(x):
        error = TypeError(1)
        for _ in range(2000):
            error = ExceptionGroup("group", [error])
        tracer_core.graph_break()
        return x + 1, len(error.exceptions)

    same(f, (X,), (X,), graphs=None, breaks=None)
