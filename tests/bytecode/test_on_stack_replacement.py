"""Loops that reach the recompile limit inside a call: CPython takes their frames over."""

import sys
import traceback

import pytest
import torch

import tracer_core
from tests.support.comparison import assert_same
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.on_stack_replacement import can_be_replaced, replacement

X = torch.ones(3)


@tracer_core.disable
def sees_variable(name):
    """Returns whether a caller's frame has the variables of the program: one of CPython's does."""
    frame = sys._getframe(1)
    while frame is not None and name not in frame.f_locals:
        frame = frame.f_back
    return frame is not None


def check_calls(function, *args, calls=3):
    compiled = tracer_core.compile(function, backend="eager", dynamic=False)
    for _ in range(calls):
        assert_same(compiled(*args), function(*args))
    return compiled(*args)


def sums(x, n, stop=-1):
    total, seen = 0, []
    for i in range(n):
        tracer_core.graph_break()

        def both(step=i):
            return total + step

        for k in (1, 2, 3):
            total += i * k % 7
        seen.append(both())
        if i == stop:
            raise KeyError(i)
        x = x + i % 3
    return x + total, sum(seen)


def calls_sums(x, n, stop=-1):
    x, total = sums(x, n, stop)
    return x * 2, total


def test_cpython_takes_over_at_the_end_of_the_loops_body():
    def f(n):
        found_native = []
        for i in range(n):
            tracer_core.graph_break()
            found_native.append((sees_variable("found_native"), str(i)))
        return [native for native, _ in found_native]

    compiled = tracer_core.compile(f, backend="eager", dynamic=False)
    assert not any(compiled(5))  # below the limit: regions
    assert compiled(40)[-10:] == [True] * 10


@pytest.mark.parametrize("function", [sums, calls_sums])
def test_cells_and_callers(function):
    check_calls(function, X, 60)


def test_a_method_that_asks_super_and_its_own_variables():
    class Base:
        def grow(self, n):
            return n + self.step

        step = 1

    class Derived(Base):
        def grow(self, n, *more, key=3, **rest):
            itself = lambda: self
            with torch.no_grad():
                while n < 200:
                    tracer_core.graph_break()
                    assert "unbound" not in locals()
                    n = super().grow(n) + len(more)
                    unbound = str(n)
                    try:
                        if n % 5 == 0:
                            raise ValueError(n)
                    except ValueError as error:
                        n += error.args[0] % 2
                    del unbound
            return n, itself() is self, key, rest, torch.is_grad_enabled()

    check_calls(Derived().grow, 1, 2, 3)


def test_loops_in_loops_and_comprehensions():
    def f(n):
        actual = []
        for i in range(n):
            for j in range(i % 3):
                if j == 1:
                    continue
                tracer_core.graph_break()
                actual.append([i * k for k in range(j + 1) if k != 2])
            else:
                actual.append({i: len(actual)})
            if i > n - 3:
                break
        return actual

    check_calls(f, 60)


def test_code_longer_than_a_byte_counts():
    lines = "\n".join(f"        a{n} = i + {n}; total += a{n}" for n in range(150))
    text = f"def f(n):\n    total = 0\n    for i in range(n):\n        pause()\n{lines}\n    return total"
    namespace = {"pause": tracer_core.graph_break}
    exec(text, namespace)
    check_calls(namespace["f"], 30)


def test_an_exception_leaves_with_the_programs_lines():
    compiled = tracer_core.compile(calls_sums, backend="eager", dynamic=False)

    def lines(function):
        with pytest.raises(KeyError) as caught:
            function(X, 60, 40)
        actual = traceback.extract_tb(caught.value.__traceback__)
        return [(item.name, item.lineno) for item in actual if item.name in ("sums", "calls_sums")]

    assert lines(compiled) == lines(calls_sums)


def test_an_exception_is_caught_by_a_caller_that_is_interpreted():
    def f(x, n):
        try:
            sums(x, n, 40)
        except KeyError as error:
            return error.args, x + 1

    check_calls(f, X, 60)


def test_variables_die_where_they_do_in_eager():
    class Big:
        alive = 0

        def __init__(self):
            Big.alive += 1

        def __del__(self):
            Big.alive -= 1

    def f(n):
        most, kept = 0, Big()
        for _ in range(n):
            tracer_core.graph_break()
            kept = Big()
            most = max(most, Big.alive)
        del kept
        return most, Big.alive

    check_calls(f, 40)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_generators_and_handlers_stay_in_the_interpreter(at_the_end):
    def numbers(n):
        for i in range(n):
            tracer_core.graph_break()
            yield i

    def f(n):
        try:
            raise ValueError
        except ValueError:
            for _ in range(n):
                tracer_core.graph_break()
        return sum(numbers(n)) if at_the_end else next(iter(numbers(n)))

    check_calls(f, 40)


def test_the_stack_must_be_as_deep_as_cpythons():
    def f(n):
        for i in range(n):
            n += i
        return n

    frame = Frame(f)
    code = frame.code
    frame.ip = code.names.index("FOR_ITER")
    frame.locals[0] = 3
    assert not can_be_replaced(frame)
    frame.stack.append(iter(range(3)))
    assert can_be_replaced(frame)
    assert replacement(frame)() == 6
    assert not frame.stack
