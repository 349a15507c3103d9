"""Warnings, logs and prints of traced programs: shown once, in order, from the program's lines."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import re
import sys
import warnings

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tracer_core.testing import CaptureCounter

X = torch.arange(3.0)
in_the_process = pytest.mark.skipif(
    bool(getattr(sys.flags, "context_aware_warnings", False)),
    reason="filters of warnings are kept in contexts, where the graph breaks",
)


def warned(function, *calls, action="always"):
    """Returns (message, category, file, line) of the warnings of some calls."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        for call in calls:
            function(*call)
    return [(str(item.message), item.category, item.filename, item.lineno) for item in seen]


def shown(function, *calls):
    """Returns what the calls write to the standard streams, and their warnings."""
    with contextlib.redirect_stderr(io.StringIO()) as both, contextlib.redirect_stdout(both):
        actual = warned(function, *calls)
    return both.getvalue(), actual


def helper(x):
    warnings.warn("by the helper")
    warnings.warn("of the caller", DeprecationWarning, stacklevel=2)
    return x + 1


def warns(x, n):
    y = helper(x * n)
    warnings.warn(FutureWarning("an object", n))
    return helper(y)


def warns_with_breaks(x, n):
    y = helper(x * n)
    tracer_core.graph_break()
    warnings.warn_explicit("explicit", UserWarning, "file.py", 3)
    return helper(y)


def prints(x, n):
    print("n is", n, n / 2, sep="|")
    y = x * n
    print("shape", y.shape, y.dtype, end=";")
    print("to the errors", file=sys.stderr)
    return y


@pytest.mark.parametrize("program", [warns, prints])
def test_messages_are_captured(program):
    fast = tracer_core.compile(program, backend="eager")
    calls = [(X, n) for n in (1, 2, 3, 2)]
    want = shown(program, *calls)
    with CaptureCounter() as counter:
        assert shown(fast, *calls) == want
    assert any(want)
    assert not counter.breaks
    assert len(counter.graphs) <= 2 + (program is warns)


@pytest.mark.parametrize("program", [warns, warns_with_breaks])
@pytest.mark.parametrize("action", ["always", "default", "ignore", "once", "module"])
def test_warnings_name_the_lines_of_the_program(program, action):
    fast = tracer_core.compile(program, backend="eager")
    calls = [(X, 2)] * 6
    assert warned(fast, *calls, action=action) == warned(program, *calls, action=action)


@pytest.mark.skipif(not hasattr(warnings, "deprecated"), reason="it came with Python 3.13")
@pytest.mark.parametrize("action", ["always", "ignore"])
def test_deprecated_functions_and_classes_are_captured(action):
    @warnings.deprecated("use another one")
    def old(x):
        return x * 2

    @warnings.deprecated("use another class", category=FutureWarning)
    class Old:
        def __init__(self, x):
            self.x = x

    def program(x):
        y = old(x)
        return Old(y).x + 1

    fast = tracer_core.compile(program, backend="eager")
    with CaptureCounter() as counter:
        assert warned(fast, (X,), (X,), action=action) == warned(program, (X,), (X,), action=action)
        with warnings.catch_warnings(action=action):
            torch.testing.assert_close(fast(X), program(X))
    assert not counter.breaks


def test_filters_that_change_between_calls():
    def f(x):
        try:
            warnings.warn("a warning")
        except UserWarning as error:
            return x + 1, str(error)
        return x, ""

    fast = tracer_core.compile(f, backend="eager")
    for action in ("default", "error", "ignore", "error", "always"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action)
            assert fast(X)[1] == f(X)[1]
        assert len(seen) == {"default": 1, "always": 2}.get(action, 0)


@in_the_process
def test_warnings_are_silenced_inside():
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("not to be seen")
            y = x * 2
        return y + 1

    before = warnings.filters, list(warnings.filters)
    same(f, (X,), (X + 1,))
    assert warnings.filters is before[0]
    assert list(warnings.filters) == before[1]
    assert warned(tracer_core.compile(f, backend="eager"), (X,), (X,)) == []


@in_the_process
def test_warnings_are_recorded_inside():
    def f(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            helper(x)
            y = x * 2
        return y + 1, [
            (str(item.message), item.category, item.lineno, item.filename) for item in seen
        ]

    same(f, (X,), (X + 1,))


@pytest.mark.parametrize("action", ["error", "default", "once"])
def test_other_filters_inside(action):
    def f(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter(action, DeprecationWarning)
            with contextlib.suppress(DeprecationWarning):
                for _ in range(3):
                    warnings.warn("three times", DeprecationWarning)
        return x + len(seen), len(seen)

    same(f, (X,), (X,), (X,), breaks=None)


def test_a_filter_stays_after_the_call():
    def f(x):
        warnings.filterwarnings("ignore", "early.*")
        warnings.warn("early one")
        return x + 1

    def around(function):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                function(X)
                warnings.warn("early two")
                warnings.warn("late")
            return [str(item.message) for item in seen], warnings.filters[0]

    assert around(tracer_core.compile(f, backend="eager")) == around(f)


def test_filters_set_after_a_break_and_before_one():
    def f(x):
        with warnings.catch_warnings():
            tracer_core.graph_break()
            warnings.simplefilter("error", SyntaxWarning)
            tracer_core.graph_break()
            try:
                compile("1 is x", "<test>", "eval")
            except SyntaxError as error:
                return x + 1, str(error)
        return x, None

    same(f, (X,), (X,), (X,), breaks=None)


def test_a_break_inside_catch_warnings():
    def f(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("before")
            tracer_core.graph_break()
            warnings.warn("after")
            y = x + 1
        warnings.warn("outside")
        return y, [str(item.message) for item in seen]

    fast = tracer_core.compile(f, backend="eager")
    calls = [(X,)] * 5
    assert warned(fast, *calls) == warned(f, *calls)
    assert fast(X)[1] == f(X)[1]


def test_messages_keep_their_order_across_breaks_and_errors():
    def f(x, n):
        print("one")
        warnings.warn("two")
        tracer_core.graph_break()
        print("three", n)
        y = x + n
        if n > 1:
            raise ValueError(n)
        print("four")
        return y

    def caught(function):
        def call(x, n):
            with contextlib.suppress(ValueError):
                function(x, n)

        return call

    calls = [(X, n) for n in (1, 2, 1, 2, 3)]
    assert shown(caught(tracer_core.compile(f, backend="eager")), *calls) == shown(
        caught(f), *calls
    )


def test_messages_of_a_training_step():
    layer = torch.nn.Linear(3, 3)

    def step(x):
        loss = layer(x).sum()
        print("before backward")
        loss.backward()
        warnings.warn("after backward")
        return loss.detach()

    fast = tracer_core.compile(step, backend="eager")
    with CaptureCounter() as counter:
        assert shown(fast, (X,), (X,)) == shown(step, (X,), (X,))
    assert not counter.breaks
    assert torch.equal(layer.weight.grad, 4 * X.expand(3, 3))


class _Tee:
    def __init__(self):
        self.lines = []

    def write(self, text):
        self.lines.append(text)


def test_a_stream_of_the_program_is_written_at_once():
    def f(x, tee):
        print("written")
        return x + len(tee.lines)

    def run(function):
        tee = _Tee()
        with contextlib.redirect_stdout(tee):
            return [function(X, tee).tolist() for _ in range(3)]

    assert run(tracer_core.compile(f, backend="eager")) == run(f)


def test_a_log_message_names_the_line_of_the_program(capsys):
    log = logging.getLogger("tests.natives.messages")
    log.propagate = False

    def inner(x):
        log.warning("%s of %d", "first", 3)
        return x + 1

    def f(x):
        y = inner(x)
        log.info("not shown")
        log.log(logging.ERROR, "second")
        return inner(y)

    def run(function):
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s %(lineno)d %(funcName)s %(pathname)s"))
        log.addHandler(handler)
        try:
            for _ in range(4):
                function(X)
        finally:
            log.removeHandler(handler)
        return capsys.readouterr().out

    with CaptureCounter() as counter:
        assert run(tracer_core.compile(f, backend="eager")) == run(f)
    assert not counter.breaks


def test_a_log_handler_of_the_program_is_called_at_once():
    log = logging.getLogger("tests.natives.handled")
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log.addHandler(handler)

    def f(x):
        log.warning("a message")
        return x + len(records)

    def run(function):
        records.clear()
        return [function(X).tolist() for _ in range(4)], [
            (record.lineno, record.funcName) for record in records
        ]

    assert run(tracer_core.compile(f, backend="eager")) == run(f)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="these warnings came with Python 3.12")
def test_python_warns_of_what_the_program_does():
    def counted():
        try:
            yield 1
        except ValueError as error:
            yield str(error)

    def f(x, flag):
        result = counted()
        next(result)
        caught = result.throw(ValueError, ValueError("old"), None)
        return x * ~flag, caught

    fast = tracer_core.compile(f, backend="eager")
    calls = [(X, True), (X, False), (X, True)]
    with CaptureCounter() as counter:
        assert warned(fast, *calls) == warned(f, *calls)
    assert not counter.breaks
    same(f, *calls)


def test_a_warning_for_the_caller_of_the_compiled_function():
    def f(x):
        warnings.warn("of the caller", stacklevel=2)
        return x + 1

    def with_break(x):
        y = f(x)
        tracer_core.graph_break()
        for level in (1, 2, 3):
            warnings.warn("at a level", UserWarning, level)
        return y

    def inner(x, function):
        return function(x)

    def calls(function):
        return warned(inner, *[(X, function)] * 5)

    for program in (f, with_break):
        assert calls(tracer_core.compile(program, backend="eager")) == calls(program)


def _deprecated_call(text):
    if sys.version_info >= (3, 13):
        return re.sub("a", "b", text, 1)
    return re.template(text).pattern


def _partial_as_a_method(text):
    class Holder:
        method = functools.partial(str.upper, text)

    held = Holder()
    return held.method() if sys.version_info < (3, 14) else text


@pytest.mark.parametrize("function", [_deprecated_call, _partial_as_a_method])
def test_libraries_and_C_code_warn_at_every_call(function):
    """They run eagerly otherwise, where a warning would be shown once, from the tracer's lines."""

    def fn(text):
        return function(text), text

    compiled = tracer_core.compile(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compiled("abc") == fn("abc")
    for text in ("abc", "abd", "abc"):
        calls = [(text,)]
        assert warned(compiled, *calls) == warned(fn, *calls)
        assert compiled(text) == fn(text)
