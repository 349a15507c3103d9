"""with, try, raise, match, and context managers of torch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest
import torch

from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else None)
        return self.swallow


def test_with_user_manager():
    def f(x):
        log = []
        with Manager(log) as m, Manager(log):
            m.log.append("body")
            x = x + 1
        return x, log

    same(f, (X,), (Y,), graphs=1)


def test_with_swallows():
    def f(x):
        log = []
        with Manager(log, swallow=True):
            x = x * 2
            raise ValueError("a")
        return x, log

    same(f, (X,), (Y,), graphs=1)


def test_with_reraises():
    def f(x, log):
        with Manager(log):
            x = x * 2
            raise ValueError("a")

    same(f, (X, []), (X, []))


def test_return_inside_with():
    def f(x):
        log = []

        def g():
            with Manager(log):
                return x + 1

        return g(), log

    same(f, (X,), (Y,), graphs=1)


def test_contextmanager():
    @contextlib.contextmanager
    def scaled(x, log):
        log.append("enter")
        try:
            yield x * 2
        finally:
            log.append("exit")

    def f(x):
        log = []
        with scaled(x, log) as y:
            z = y + 1
        return z, log

    same(f, (X,), (Y,), graphs=1)


def test_contextmanager_sees_exception():
    @contextlib.contextmanager
    def guard(log):
        try:
            yield
        except ValueError as error:
            log.append(str(error))

    def f(x):
        log = []
        with guard(log):
            raise ValueError("bad")
        return x + 1, log

    same(f, (X,), (Y,), graphs=1)


def test_exit_stack():
    def f(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Manager(log))
            stack.callback(log.append, "callback")
            x = x + 1
        return x, log

    same(f, (X,), (Y,), breaks=None)


def test_suppress_and_nullcontext():
    def f(x):
        with contextlib.suppress(KeyError), contextlib.nullcontext(5) as n:
            x = x + n
            {}["missing"]
        return x

    same(f, (X,), (Y,), graphs=1)


def test_no_grad():
    p = torch.nn.Parameter(torch.ones(4))

    def f(x):
        with torch.no_grad():
            y = x * p
        return y, x * p, torch.is_grad_enabled()

    same(f, (X,), (Y,), graphs=1)


def test_enable_grad_inside_no_grad():
    p = torch.nn.Parameter(torch.ones(4))

    def f(x):
        with torch.no_grad():
            a = x * p
            with torch.enable_grad():
                b = x * p
            c = x + p
        return a, b, c

    same(f, (X,), (Y,), graphs=1)


def test_no_grad_decorator():
    p = torch.nn.Parameter(torch.ones(4))

    @torch.no_grad()
    def g(x):
        return x * p

    same(lambda x: (g(x), x * p), (X,), (Y,), graphs=1)


def test_set_grad_enabled_lasts():
    def f(x):
        torch.set_grad_enabled(False)
        return x + 1

    try:
        same(f, (X,), (X,), (X,))
    finally:
        torch.set_grad_enabled(True)


def test_inference_mode():
    def f(x):
        with torch.inference_mode():
            return (x * 2).sum()

    same(f, (X,), (Y,), breaks=None)


def test_autocast():
    w = torch.randn(4, 4)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, x @ w

    same(f, (X,), (Y,), breaks=None)


def test_autocast_outside():
    def f(x):
        return x @ x.t()

    def make():
        def g(x, on):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
                return inner(x)

        return g

    import tracer_core

    inner = tracer_core.compile(f, backend="eager")
    for on in (False, True, False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            assert inner(X).dtype is f(X).dtype
    assert make()(X, True).dtype is torch.bfloat16


def test_try_except_else_finally():
    def f(x, n):
        log = []
        try:
            if n == 1:
                raise ValueError("v")
            if n == 2:
                raise KeyError("k")
            x = x + 1
        except ValueError as error:
            log.append(str(error))
        except (KeyError, IndexError):
            log.append("lookup")
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x, log

    same(f, (X, 0), (X, 1), (X, 2), (X, 0))


def test_raise_from():
    def f(x):
        try:
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error
        except ValueError as error:
            return x + 1, str(error.__cause__), error.__suppress_context__, str(error.__context__)

    same(f, (X,), (Y,), graphs=1)


def test_raise_from_none():
    def f(x):
        try:
            try:
                raise KeyError("inner")
            except KeyError:
                raise ValueError("outer") from None
        except ValueError as error:
            return x + 1, error.__cause__, error.__suppress_context__, str(error.__context__)

    same(f, (X,), (Y,), graphs=1)


def test_implicit_context():
    def f(x):
        try:
            try:
                raise KeyError("inner")
            except KeyError:
                {}["other"]
        except KeyError as error:
            return x + 1, str(error), str(error.__context__)

    same(f, (X,), (Y,), graphs=1)


def test_bare_raise():
    def f(x):
        try:
            try:
                raise KeyError("a")
            except KeyError:
                x = x + 1
                raise
        except KeyError as error:
            return x, str(error)

    same(f, (X,), (Y,), graphs=1)


def test_exception_through_inlined_calls():
    def g(x, n):
        if n == 0:
            raise ValueError("deep")
        return g(x, n - 1)

    def f(x):
        try:
            return g(x, 3)
        except ValueError as error:
            return x * 2, str(error)

    same(f, (X,), (Y,), graphs=1)


def test_custom_exception():
    class Oops(Exception):
        def __init__(self, value, extra=1):
            super().__init__(value)
            self.value, self.extra = value, extra

    def f(x):
        try:
            raise Oops(x, extra=3)
        except Oops as error:
            return error.value * error.extra, len(error.args)

    same(f, (X,), (Y,), graphs=1)


def test_exception_escapes():
    def f(x, n):
        if n:
            raise ValueError(f"n is {n}")
        return x

    same(f, (X, 0), (X, 1), (X, 0), (X, 2))


def test_finally_overrides_return():
    def f(x):
        def g():
            try:
                return x
            finally:
                return x + 5

        return g()

    same(f, (X,), (Y,), graphs=1)


def test_finally_in_loop_with_continue():
    def f(x):
        log = []
        for i in range(4):
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
                x = x + i
            finally:
                log.append(i)
        return x, log

    same(f, (X,), (Y,), graphs=1)


def test_error_in_operator_raises_as_eager():
    def f(x, y):
        return x @ y

    same(f, (X, Y), (X, Y.t()), (X, Y), kinds=("operator_failed",))


FAILING = {
    "product": lambda x, y: x @ y.t()[:2],
    "matmul": lambda x, y: torch.matmul(x, y[:, :1]),
    "cat": lambda x, y: torch.cat([x, y[:, :2]]),
    "view": lambda x, y: x.t().view(-1),
    "reshape": lambda x, y: (x * 2).reshape(7, -1),
    "index": lambda x, y: (x + 1)[9],
    "dimension": lambda x, y: x.sum(7),
    "broadcast": lambda x, y: x + y[:, :3],
    "layer": lambda x, y: torch.nn.functional.linear(x, y[:, :3]),
    "in place": lambda x, y: (x * 2).add_(torch.ones(2, 3, 4)),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", FAILING)
def test_error_in_operator_is_caught(name, backend):
    failing, seen = FAILING[name], []

    def f(x, y):
        x = x * 2
        try:
            x = failing(x, y)
        except (RuntimeError, IndexError) as error:
            seen.append(str(error))
            x, text = x - 1, f"{type(error).__name__}: {error}"
        finally:
            y = y + 1
        return x, y, text

    same(f, (X, Y), (Y, X), (X * 2, Y), graphs=1, backend=backend)
    assert len(set(seen)) == 1


def test_error_in_operator_is_caught_for_other_sizes():
    def f(x, y):
        try:
            return x @ y
        except RuntimeError as error:
            return x + 1, str(error)

    sizes = [(3, 4), (4, 3), (5, 4), (6, 4), (3, 3)]
    same(f, *[(X[:, :3], torch.ones(*size)) for size in sizes], breaks=None, backend="inductor")
    same(f, (X, Y), (X, Y.t()), (X, Y), breaks=0)


def test_error_of_values_is_caught():
    def f(x, at):
        try:
            return torch.linalg.cholesky(x), x.gather(0, at)
        except RuntimeError as error:
            return x * 3, str(error)

    good, bad = torch.eye(3), -torch.eye(3)
    at, far = torch.zeros(1, 3, dtype=torch.int64), torch.full((1, 3), 7)
    steps = [(good, at), (bad, at), (good, far), (good, at)]
    for backend in ("eager", "inductor"):
        same(f, *steps, breaks=None, backend=backend)


def test_error_in_operator_is_handled_by_a_context():
    def f(x, y):
        with contextlib.suppress(RuntimeError):
            x = x @ y
        return x + 1

    same(f, (X, Y), (Y, X), breaks=None)


def test_exception_groups():
    def g(x):
        try:
            raise ExceptionGroup("g", [ValueError("a")])
        except* ValueError:
            x = x + 1
        return x

    same(lambda x: g(x) * 2, (X,), (Y,), graphs=1)


@dataclass
class Point:
    x: object
    y: object


def test_match():
    def f(t, subject):
        match subject:
            case 0:
                return t
            case [a, b]:
                return t * a + b
            case [a, *rest]:
                return t + a, rest
            case {"k": v, **others}:
                return t - v, others
            case Point(x=0, y=y):
                return t + y
            case Point(a, b) if b:
                return t * a
            case str() as s:
                return s
            case int(n) | float(n):
                return t * n
            case _:
                return None

    subjects = [
        0,
        [1, 2],
        [1, 2, 3],
        {"k": 2, "z": 1},
        Point(0, 4),
        Point(2, 3),
        Point(2, 0),
        "s",
        5,
        2.5,
        None,
    ]
    for some in (subjects[:4], subjects[4:8], subjects[8:]):
        same(f, *[(X, s) for s in some * 2])


def test_match_enum_and_none():
    import enum

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    def f(x, c):
        match c:
            case Color.RED:
                return x
            case Color.BLUE:
                return x * 2
            case None:
                return x - 1

    same(f, (X, Color.RED), (X, Color.BLUE), (X, None), (X, Color.RED))


def test_sys_exc_info():
    import sys

    def f(x):
        try:
            raise ValueError("seen")
        except ValueError:
            return x + 1, str(sys.exc_info()[1])

    same(f, (X,), (Y,), breaks=None)


def test_exception_with_traceback_text():
    import traceback

    def f(x):
        try:
            raise ValueError("seen")
        except ValueError as error:
            return x + 1, traceback.format_exception_only(error)

    same(f, (X,), (Y,), breaks=None)


def test_grad_mode_of_caller():
    p = torch.nn.Parameter(torch.ones(4))

    def make():
        return (lambda x: x * p), None

    seen = compare_with_eager(make, (X,), breaks=0)
    with torch.no_grad():
        assert not seen.compiled(X).requires_grad
    assert seen.compiled(X).requires_grad
