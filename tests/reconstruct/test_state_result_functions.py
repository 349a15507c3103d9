"""Functions, methods, exceptions and iterators that a compiled function gives back."""

from __future__ import annotations

import dataclasses
import functools
import operator

import torch
from torch import nn

from tests.support.described_results import described
from tests.support.eager_reference import same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_functions_made_inside():
    def f(x):
        k = x + 1

        def g(y: int, z: object = k, *, w: int = 3) -> float:
            "A text."
            return y * z + k + w

        g.tag = [g]
        g.__qualname__ = "renamed"
        return g

    def look(g):
        return (
            g(Y), g(Y, 2, w=1), g.tag[0] is g, g.__name__, g.__qualname__, g.__doc__, g.__module__,
            g.__annotations__,
            list(g.__kwdefaults__.items()),
        )  # fmt: skip

    described(f, look)


def test_lambda_in_partial():
    described(
        lambda x: (
            functools.partial(torch.add, x + 1, alpha=2),
            functools.partial(lambda a, b: a - b, b=x),
        ),
        lambda r: (r[0](Y), r[1](Y), r[0].keywords),
    )


def test_bound_methods():
    class A:
        def __init__(self, v):
            self.v = v

        def m(self, y):
            return self.v + y

        @classmethod
        def c(cls):
            return cls

        @staticmethod
        def s(y):
            return y

    def f(x):
        a = A(x + 1)
        return a.m, a, a.c, a.s, [x].append, "abc".upper

    described(
        f,
        lambda r: (
            r[0].__self__ is r[1],
            r[0](Y),
            r[2]() is A,
            r[3] is A.s,
            len(r[4].__self__),
            r[5](),
        ),
    )


def test_functions_that_existed_before_are_themselves():
    def g(x):
        return x

    class C:
        f = staticmethod(g)

    described(
        lambda x: (g, C.f, torch.relu, nn.functional.relu, len, operator.add, dataclasses.field),
        lambda r: [
            a is b
            for a, b in zip(
                r,
                (g, g, torch.relu, nn.functional.relu, len, operator.add, dataclasses.field),
                strict=True,
            )
        ],
    )


def test_exception_with_its_own_constructor():
    class Problem(Exception):
        def __init__(self, code, where):
            super().__init__(f"problem {code}")
            self.where = where

    def f(x):
        try:
            raise Problem(3, [x])
        except Problem as error:
            return error

    described(f, lambda e: (type(e) is Problem, e.args, e.where))


def test_exception_with_cause_and_context():
    def f(x):
        try:
            try:
                raise KeyError("a")
            except KeyError as error:
                raise ValueError("b", x + 1) from error
        except ValueError as error:
            return error

    def look(e):
        return (
            e.args,
            type(e.__cause__),
            e.__cause__.args,
            e.__context__ is e.__cause__,
            e.__suppress_context__,
        )

    described(f, look)


def test_exceptions_with_fields():
    def f(x):
        actual = []
        for step in range(4):
            try:
                if step == 0:
                    x.nothing
                elif step == 1:
                    {}["k"]
                elif step == 2:
                    raise StopIteration(x + 1)
                else:
                    raise OSError(2, "none", "file")
            except (AttributeError, KeyError, StopIteration, OSError) as error:
                actual.append(error)
        return actual

    def look(actual):
        attribute, key, stop, os_error = actual
        return (
            attribute.name, key.args, stop.value, os_error.errno, os_error.filename,
            type(os_error), str(attribute),
        )  # fmt: skip

    described(f, look)


def test_slices_ranges_and_constants():
    same(
        lambda x: (
            slice(1, x.shape[0]),
            range(x.shape[0]),
            ...,
            NotImplemented,
            x.dtype,
            x.shape,
            1j,
        ),
        (X,),
        (Y,),
    )


def test_iterators_half_used():
    def f(x):
        items = [x + 1, x + 2, x + 3]
        it = iter(items)
        next(it)
        pairs = zip([1, 2, 3], items, strict=True)
        next(pairs)
        keys = iter({"a": 1, "b": 2})
        next(keys)
        return it, items, pairs, enumerate(items, 5), reversed(items), keys

    described(
        f,
        lambda r: (list(r[0]), list(r[2]), list(r[3]), list(r[4]), list(r[5])),
    )


def test_iterator_sees_later_changes_of_its_list():
    def f(x):
        items = [x]
        return iter(items), items

    def look(r):
        r[1].append(5)
        return list(r[0])

    described(f, look)
