"""One case a fact about functions, closures and methods that a trace relies on."""

from __future__ import annotations

import functools

import pytest

import tracer_core
from tests.support.eager_reference import module
from tests.support.guard_facts import Box, Facts, check

fact = Facts()


# -- functions --


@fact("function: __code__", reason="__code__")
def _():
    def g(x):
        return x + 1

    return (lambda x: g(x)), lambda: setattr(g, "__code__", (lambda x: x - 1).__code__)


@fact("function: __defaults__", reason="__defaults__")
def _():
    def g(x, k=2):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g, "__defaults__", (3,))


@fact("function: __defaults__ removed", breaks=None)
def _():
    def g(x, k=2):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g, "__defaults__", None)


@fact("function: a mutable default", reason="__defaults__")
def _():
    def g(x, k=[2]):
        return x * k[0]

    return (lambda x: g(x)), lambda: g.__defaults__[0].__setitem__(0, 3)


@fact("function: __kwdefaults__", reason="k")
def _():
    def g(x, *, k=2):
        return x * k

    return (lambda x: g(x)), lambda: g.__kwdefaults__.update(k=3)


@fact("function: __kwdefaults__ replaced", reason="k")
def _():
    def g(x, *, k=2):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g, "__kwdefaults__", {"k": 3})


@fact("function: number of positional defaults", reason="")
def _():
    def g(x, a=1, b=2):
        return x * a + b

    return (lambda x: g(x, 5)), lambda: setattr(g, "__defaults__", (7,))


@fact("closure cell", reason="k")
def _():
    k = 2

    def g(x):
        return x * k

    return (lambda x: g(x)), lambda: setattr(g.__closure__[0], "cell_contents", 3)


@fact("own closure cell of the compiled function", reason="k")
def _():
    k = 2

    def g(x):
        return x * k

    return g, lambda: setattr(g.__closure__[0], "cell_contents", 3)


@fact("closure cell becomes empty")
def _():
    k = 2

    def g(x):
        return x * k

    def empty():
        del g.__closure__[0].cell_contents

    return g, empty


@fact("nonlocal changed by a sibling", reason="k")
def _():
    k = 2

    def more():
        nonlocal k
        k += 1

    return (lambda x: x * k), more


@fact("own __code__ of the compiled function")
def _():
    def g(x):
        return x + 1

    return g, lambda: setattr(g, "__code__", (lambda x: x - 1).__code__)


@fact("own __defaults__ of the compiled function")
def _():
    def g(x, k=2):
        return x * k

    return g, lambda: setattr(g, "__defaults__", (3,))


@fact("own __kwdefaults__ of the compiled function")
def _():
    def g(x, *, k=2):
        return x * k

    return g, lambda: g.__kwdefaults__.update(k=3)


@fact("bound method: its object", reason="k")
def _():
    class C:
        def __init__(self, k):
            self.k = k

        def go(self, x):
            return x * self.k

    b = Box(m=C(2).go)
    return (lambda x: b.m(x)), lambda: setattr(b, "m", C(5).go)


@fact("function wrapped by functools.wraps")
def _():
    def inner(x):
        return x + 1

    @functools.wraps(inner)
    def outer(x):
        return outer.__wrapped__(x) * 2

    return (lambda x: outer(x)), lambda: setattr(outer, "__wrapped__", lambda x: x - 1)


@fact("recursion: a function's own limit", reason="DEPTH")
def _():
    m = module(
        "DEPTH = 3\ndef g(x, n):\n    return x if n == DEPTH else g(x + n, n + 1)\ndef f(x):\n    return g(x, 0)\n"
    )
    return m.f, lambda: setattr(m, "DEPTH", 4)


@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))
