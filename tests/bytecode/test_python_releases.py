"""Constructs whose bytecode or meaning changed between CPython 3.11 and 3.14, at graph breaks too:
super-instructions, calls, bools, ``with``, comprehensions, frame locals, annotations, template
strings, ``finally``, monitoring, generators and the garbage collector.

Programs in the syntax of a later Python are source text, and are skipped on an earlier one.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from tests.support.eager_reference import module, same
from tests.support.graph_breaks import broken
from tests.support.named_programs import Programs, X, Y, texts_of

program = Programs()
at_breaks = program(graphs=None, breaks=None)


# -- instructions on two variables --


@program
def pairs_of_variables(x):
    a, b = x, x + 1
    a, b = b, a
    c = a - b
    d = c
    a, b, c = c, a, b
    return a * b, c / (d + 2), a


@at_breaks
def pairs_of_variables_around_breaks(x):
    a, b = broken(x), broken(x + 1)
    a, b = b, broken(a)
    total = a
    for c, d in [(a, b), (b, a)]:
        e, f = broken(d), c
        total = total + e * f
    return total, broken(a) @ b.T, (a, b)


@program
def the_second_of_two_variables_is_unbound(x):
    a = b = x.sum()
    del b
    try:
        return a + b
    except UnboundLocalError as error:
        return a, str(error)


@program
def more_variables_than_a_pair_has_room_for(x):
    a = b = c = d = e = f = g = h = i = j = k = l = m = n = o = x
    p, q = a + o, b - n
    q, p = p, q
    return p * q + c + d + e + f + g + h + i + j + k + l + m


# -- calls --


def described(*args, scale=1, **others):
    return [arg * scale for arg in args], sorted(others)


class Scaled:
    def __init__(self, by, *, extra=0):
        self.by, self.extra = by, extra

    def times(self, value, *, plus=0):
        return value * self.by + plus + self.extra

    def __call__(self, value, **more):
        return self.times(value, **more)


class Twice(Scaled):
    def times(self, value, *, plus=0):
        return super().times(value, plus=plus) * 2


@program
def calls_with_keywords(x):
    first = described(x, scale=2, other=x)
    second = described(*[x, x], **{"scale": 3, "a b": 1})
    twice = Twice(by=x.shape[0], extra=1)
    return first, second, twice.times(x, plus=2), twice(value=x, plus=1), dict(a=x, b=2)


@at_breaks
def calls_with_keywords_around_breaks(x):
    twice = Twice(broken(2), extra=broken(x.mean()))
    first = described(broken(x), scale=broken(2), other=broken(x))
    second = twice.times(broken(x), plus=broken(1))
    third = described(*broken([x]), **broken({"scale": 3}))
    return first, second, third, (broken(described) if x.dim() else None)(x, scale=4)


@program
def calls_that_do_not_fit(x):
    def named(a, /, b, *, c):
        return a, b, c

    return x + 1, texts_of(
        lambda: named(1, b=2),
        lambda: named(1, c=2),
        lambda: named(a=1, b=2, c=3),
        lambda: named(1, 2, c=3, d=4),
        lambda: named(1, 2, 3, c=4),
        lambda: named(1, 2, b=3, c=4),
        lambda: named(*[1, 2], **{"c": 1}, **{"c": 2}),  # noqa: PIE804
        lambda: named(1, 2, colour=4, c=3),
    )


@program
def callables_that_are_computed(x):
    def adder(n):
        return lambda value, *, by=1: value + n * by

    table = {"f": adder(1), "g": adder(2)}
    return table["f"](x)[0], adder(3)(x, by=2), (adder(4) if x.dim() > 1 else adder(5))(x)


# -- bools --


class Truth:
    def __init__(self, answer, log):
        self.answer, self.log = answer, log

    def __bool__(self):
        self.log.append(self.answer)
        return self.answer


class Sized:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class Compared:
    def __init__(self, answer):
        self.answer = answer

    def __lt__(self, other):
        return self.answer

    def __eq__(self, other):
        return self.answer

    __hash__ = None

    def __contains__(self, other):
        return self.answer


@program
def truth_values_are_asked_once(x):
    log = []
    yes, no = Truth(True, log), Truth(False, log)
    actual = [not yes, not no, not not yes]
    actual.append("a" if yes and not no else "b")
    actual += [(yes and no) is no, (yes or no) is yes, (no or yes) is yes]
    while no or not yes:
        break
    if not (no or not yes):
        actual.append("c")
    actual += [bool(Sized(0)), not Sized(2), bool(Compared([]) < 1), 1 in Compared([1])]
    assert yes
    return x * len(log), actual, log


@program
def comparisons_give_what_their_methods_give(x):
    text, nothing = Compared("text"), Compared([])
    actual = [text < 1, nothing < 1, text == 1, not nothing < 1, 0 < 1 < 2 > text]
    actual.append("yes" if text < 1 else "no")
    actual.append("yes" if nothing == 1 else "no")
    actual.append([n for n in (1, 2) if nothing < n])
    return x + len(actual), actual


@program
def truth_values_that_are_errors(x):
    class Wrong:
        def __bool__(self):
            return 1

    class Negative:
        def __len__(self):
            return -1

    class Raises:
        def __bool__(self):
            raise KeyError("no truth")

    return x + 1, texts_of(
        lambda: not Wrong(),
        lambda: 1 if Negative() else 2,
        lambda: [value for value in (1,) if Raises()],
        errors=(TypeError, ValueError, KeyError),
    )


@at_breaks
def the_truth_of_a_tensor(x):
    total = x.sum()
    first = not total > 100
    second = total > 0 and x + 1
    third = total < -100 or x * 2
    fourth = x if not (total - total) else -x
    while total < 3:
        total = total + 2.5
    assert total, "some"
    return first, second, third, fourth, total


# -- with statements --


class Manager:
    def __init__(self, log, swallows=False):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append((kind and kind.__name__, str(error), trace is not None))
        return self.swallows


@program
def with_statements(x):
    log = []
    with Manager(log) as item, Manager(log, swallows=True), torch.no_grad():
        x = x * 2
        log.append(item.swallows)
        raise ValueError("swallowed")
    for n in range(3):
        with Manager(log):
            if n == 1:
                continue
            x = x + n
    with contextlib.suppress(KeyError), Manager(log):
        {}[x.dim()]
    return x, log


@at_breaks
def with_statements_around_breaks(x):
    log = []

    def leave(value):
        with Manager(log), Manager(broken(log)) as second:
            value = broken(value) + 1
            with contextlib.suppress(ValueError):
                value = value * 2
                raise ValueError(broken("left"))
            return broken(value) * len(second.log)

    with pytest.raises(ZeroDivisionError), Manager(log):
        x = broken(x) + 1
        1 / broken(0)
    return leave(x), log


@program
def what_is_no_context_manager(x):
    class OnlyEnter:
        def __enter__(self):
            return self

    class OnlyExit:
        def __exit__(self, *error):
            return None

    class Asynchronous:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            return None

    class InInstance:
        def __init__(self):
            self.__enter__ = self.__exit__ = lambda *_: None

    def enter(item):
        with item:
            pass

    ones = (1, OnlyEnter(), OnlyExit(), Asynchronous(), InInstance(), None)
    return x + 1, texts_of(*[lambda value=item: enter(value) for item in ones])


# -- constants that instructions name --


@program
def constants_that_instructions_name(x):
    numbers = [x, x + 1]
    actual = [tuple(n * 2 for n in numbers), all(n.dim() for n in numbers)]
    actual.append(any(n.dim() > 5 for n in numbers))
    return actual


@at_breaks
def generators_in_all_and_any_around_breaks(x):
    rows = [x, x + 1]
    first = all(broken(row.dim()) for row in rows)
    second = any(row.sum() > 100 for row in rows)
    return first, second, tuple(broken(row) for row in rows)


def test_assertions():
    result = module("""
def fn(x):
    assert x.dim() == 2
    try:
        assert x.dim() == 5, "five"
    except AssertionError as error:
        return x + 1, error.args
""")
    same(result.fn, (X,), (Y,), graphs=1)


def test_all_and_tuple_of_another_meaning():
    result = module("""
def all(them):
    return ["all", *them]
def fn(x):
    any = tuple = lambda them: [len(list(them)), "local"]
    return x + 1, all(n for n in (1, 0)), any(n for n in (1, 0)), tuple(n for n in (1, 2))
""")
    same(result.fn, (X,), (Y,), graphs=1)


@program.cases()
def test_program(name):
    program.run(name)
