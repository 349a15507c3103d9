"""Programs that random generation, made small, found to differ from eager: exceptions and groups of
them."""

from __future__ import annotations

import enum
import itertools

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support.eager_reference import same

X = torch.randn(2, 3)


def test_a_handler_around_an_operator_that_fails_only_for_real():
    weight = torch.ones(3, 3)

    def fn(x):
        try:
            return F.linear(x, weight)
        except RuntimeError as error:
            return str(error), x + 1

    same(fn, (X.double(),), (X.double(),), breaks=0)


def test_the_traceback_handed_to_exit_is_carried():
    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            print("leaving", flush=[])
            return trace is not None and kind is RuntimeError

    def fn(x):
        with Manager():
            if x:
                pass
        return x + 1

    same(fn, (X,), (X,), breaks=None)


def test_an_error_in_an_except_clause():
    def fn(x, y):
        try:
            try:
                x.view_as(y)
            except 1:
                pass
        except TypeError as error:
            return error, type(error.__context__)

    same(fn, (torch.ones(2, 1), X), (torch.ones(2, 1), X), breaks=None)


def test_raise_again_what_was_caught_before_a_break():
    def fn(x):
        try:
            x.view(7)
        except RuntimeError:
            print("caught", flush=[])
            raise

    same(fn, (X,), (X,), breaks=None)


def test_what_raised_in_one_call_need_not_raise_in_the_next():
    class Holder:
        bump = 3

    def fn(x, y):
        print("here", flush=[])
        return x + y.bump

    same(fn, (X, X), (X, Holder()), (X, X), breaks=None)


def test_a_group_leaves_the_function():
    def fn(x, items):
        groups = itertools.groupby(items)
        return type(groups), [(key, list(group)) for key, group in groups], x + 1

    same(fn, (X, [1, 1, 2]), (X, [3]), breaks=None)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize(
    "text", [str, repr, "{}".format, lambda error: f"{error}"], ids=["str", "repr", "format", "f"]
)
@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError])
def test_the_text_of_an_exception_from_before_a_break(text, kind):
    @tracer_core.disable
    def fail(what):
        raise kind(*what)

    def fn(x, whats):
        actual = []
        for what in whats:
            try:
                fail(what)
            except kind as error:
                actual.append(text(error))
        return actual, x + 1

    same(fn, (X, [("a",), ("b",), (1, "c"), ()]), (X, [("d",)]), breaks=None)


def test_a_generator_is_alive_where_the_program_raises():
    def f(x, n):
        numbers = (i * 2 for i in range(3))
        y = x + next(numbers)
        if n:
            raise ValueError(next(numbers))
        return y + next(numbers)

    same(f, (X, 0), (X, 1), (X, 1), (X, 0), breaks=None)


def test_a_missing_free_variable_has_no_context():
    def f(x):
        if x is None:
            late = 1

        def inner():
            return late

        try:
            inner()
        except NameError as error:
            return x + 1, error.__context__, error.__cause__, str(error)

    same(f, (X,), (X,), breaks=0)


def test_a_missing_free_variable_after_a_break_has_no_context():
    def f(x):
        if x is None:
            late = 1

        def inner():
            tracer_core.graph_break()
            return late

        try:
            inner()
        except NameError as error:
            return x + 1, error.__context__, error.__cause__, str(error)

    same(f, (X,), (X,), breaks=None)


def test_what_is_left_of_a_group_after_except_star():
    def f(x, n):
        try:
            raise ExceptionGroup(
                "g", [ValueError("q"), KeyError(n), ExceptionGroup("h", [TypeError(n + 1)])]
            )
        except* ValueError:
            pass
        return x + 1

    same(f, (X, 1), (X, 2), (X, 3), breaks=None)


def test_a_group_handed_in_is_split():
    def f(x, group):
        try:
            raise group
        except* ValueError as found:
            seen = [error.args for error in found.exceptions]
        except* KeyError as found:
            seen = [error.args for error in found.exceptions]
        return x + 1, seen

    same(
        f,
        *(
            (X, ExceptionGroup("g", [kind(i)]))
            for i, kind in enumerate((ValueError, ValueError, KeyError))
        ),
        breaks=None,
    )


def test_parts_of_a_group_handed_in():
    def f(x, group):
        left, right = group.split(ValueError)
        return (
            x + 1,
            [error.args for error in left.exceptions],
            group.subgroup(KeyError).exceptions[0].args,
            str(right),
        )

    groups = [ExceptionGroup("g", [ValueError(i), KeyError(i + 1)]) for i in range(3)]
    same(f, *((X, group) for group in groups), breaks=None)


def test_one_exception_in_except_star():
    def f(x, n):
        try:
            raise ValueError(n)
        except* ValueError as found:
            kept = found.args
        return x + 1, type(kept[1]), kept[1][0].args

    same(f, (X, 1), (X, 2), breaks=None)


class Height(enum.IntEnum):
    LOW = 1
    HIGH = 3


def test_the_argument_of_an_error_is_guarded_when_its_text_is_read():
    def fn(x, error):
        return x + 1, str(error), repr(error)

    errors = [
        KeyError(Height.HIGH),
        KeyError(2.5),
        KeyError(Height.LOW),
        ValueError(Height.HIGH),
        ValueError(2),
    ]
    same(fn, *[(X, error) for error in errors], graphs=None, kinds=())
