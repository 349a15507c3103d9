"""Functions that a program makes in each call: their cells, annotations and identity, across graph
breaks too."""

from __future__ import annotations

import types

import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
X2 = X * 2


def test_functions_that_are_made_in_each_call_live_across_a_break():
    def f(x, n):
        seen, calls = [], 0

        def helper(y, k=n, *, w=seen):
            nonlocal calls
            calls += 1
            w.append(k)
            return y * k

        def even(k):
            return k == 0 or odd(k - 1)

        def odd(k):
            return k != 0 and even(k - 1)

        optional = None if n > 5 else lambda y: y + n
        tracer_core.graph_break()
        x = helper(x) + helper(x, 3)
        if optional is not None:
            x = optional(x)
        return x + even(4), seen, calls

    same(f, (X, 2), (Y, 2), (X, 2), (Y, 2), graphs=1, breaks=1)
    same(f, (X, 2), (X, 3), (X, 4), (X, 5), (X, 6), (X, 7), graphs=3, breaks=3)


def test_a_function_made_in_each_call_breaks_inside():
    def f(x):
        def inner(k):
            if k == 0:
                tracer_core.graph_break()
                return x
            return inner(k - 1) + 1

        return inner(3) * 2

    same(f, (X,), (Y,), (X2,), graphs=1, breaks=1)


def test_an_argument_is_a_function_that_is_made_in_each_call():
    def times(k):
        def made(y, n=2):
            return y * k * n

        return made

    def changed(**fields):
        function = times(3)
        for name, value in fields.items():
            setattr(function, name, value)
        return function

    elsewhere = types.FunctionType(times(3).__code__, {"__name__": "elsewhere"}, "elsewhere",
                                   (4,), times(5).__closure__)  # fmt: skip
    functions = [
        times(3), times(3), times(4), times(5), changed(__defaults__=None), times(2),
        changed(__defaults__=None, __qualname__="renamed"), changed(__kwdefaults__={"n": 1}),
        changed(__defaults__=(7,)), changed(mark=1), tracer_core.disable(times(3)), elsewhere,
        changed(__code__=(lambda k: lambda y: y - k)(1).__code__), torch.sin, times(3),
    ]  # fmt: skip
    fast = tracer_core.compile(lambda x, f: f(x), backend="eager")
    for function in functions:
        try:
            expected = function(X)
        except TypeError as error:
            expected = str(error)
        try:
            result = fast(X, function)
        except TypeError as error:
            result = str(error)
        assert result == expected if isinstance(result, str) else torch.equal(result, expected)


def test_functions_that_share_a_cell_in_some_calls():
    def make():
        def counters():
            n = 0

            def one():
                nonlocal n
                n += 1
                return n

            def two():
                nonlocal n
                n += 2
                return n

            return one, two

        kept = counters()

        def f(x, how):
            first, second = counters()
            if how == "apart":
                second = counters()[1]
            elif how == "twice":
                second = first
            elif how == "kept":
                second = kept[1]
            tracer_core.graph_break()
            return x + first() + 10 * second() + 100 * first(), second is first

        return f

    hows = ["shared", "apart", "twice", "kept", "shared", "twice", "kept", "apart"]
    compare_with_eager(make, *[(X, how) for how in hows])
    compare_with_eager(make, *[(X, how) for how in reversed(hows)])
    compare_with_eager(make, *[(X, "twice")] * 2, (X, "shared"), (X, "apart"), (X, "kept"))


def test_the_identity_of_a_function_made_in_each_call_is_seen():
    def f(x, kept):
        def function(y):
            return y + 1

        kept.append(function)
        tracer_core.graph_break()
        x = function(x)
        table = {function: "found"}
        same = [function is item for item in kept]
        return x, table[kept[-1]], same, kept.index(function), function.__name__

    fast, kept, fast_kept = tracer_core.compile(f, backend="eager"), [], []
    for _ in range(4):
        expected, result = f(X, kept), fast(X, fast_kept)
        assert torch.equal(result[0], expected[0]) and result[1:] == expected[1:]


def test_functions_share_their_annotations_across_a_break():
    def f(x, key):
        def one():
            pass

        def two():
            pass

        two.__annotations__ = one.__annotations__
        tracer_core.graph_break()
        one.__annotations__[key] = int
        return x + 1, two.__annotations__

    same(f, (X, "a"), (Y, "a"), (X, "b"), breaks=1)
