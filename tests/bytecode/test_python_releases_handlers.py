"""Exception tables, ``finally``, comprehensions and iterators, whose bytecode changed between CPython
3.11 and 3.14."""

from __future__ import annotations

import collections
import itertools
import sys

import pytest

from tests.support.eager_reference import module, same
from tests.support.graph_breaks import broken
from tests.support.named_programs import Programs, X, Y, texts_of
from tracer_core import graph_break

program = Programs()
at_breaks = program(graphs=None, breaks=None)


# -- exception tables --


@program
def exceptions_in_loops_and_handlers(x):
    log = []
    for n in range(6):
        try:
            try:
                if n % 3 == 0:
                    raise ValueError(n)
                if n % 3 == 1:
                    raise KeyError(n)
                x = x + n
            except ValueError as error:
                log.append(str(error))
                if n:
                    raise RuntimeError("again") from error
                continue
            else:
                log.append("else")
            finally:
                x = x * 2
                log.append(n)
        except (KeyError, RuntimeError) as error:
            log.append((type(error).__name__, type(error.__context__).__name__))
    return x, log


@pytest.mark.skipif(sys.version_info < (3, 13), reason="CPython checks it since 3.13")
def test_a_class_that_makes_no_cause():
    class Nothing(BaseException):
        def __new__(cls):
            return None

    def fn(x):
        try:
            raise IndexError(1) from Nothing
        except TypeError as error:
            return x + 1, str(error).partition("should")[1:], repr(error.__context__)

    same(fn, (X,), (Y,))


@at_breaks
def the_text_of_a_group(x):
    members = [ValueError(1), TypeError(2)]
    result = [ExceptionGroup("a", members), ExceptionGroup("b", tuple(members))]
    result += [ExceptionGroup("c", collections.deque(members)), ExceptionGroup("d", members)]
    first = [repr(group) for group in result]
    members.clear()
    result[3].args = ("other",)
    broken(x)
    return x + 1, first, [repr(group) for group in result]


@program
def groups_that_split_in_their_own_way(x):
    class NoTuple(ExceptionGroup):
        def split(self, *kinds):
            return "text"

    class Short(ExceptionGroup):
        def split(self, *kinds):
            return ("text",)

    class Long(ExceptionGroup):
        def split(self, *kinds):
            return *super().split(*kinds), "more"

    def handle(kind):
        try:
            raise kind("group", [OSError("a"), ValueError("b")])
        except* ValueError as group:
            actual.append(repr(group))
        except* OSError as group:
            actual.append(repr(group))

    actual = []
    handle(Long)
    if sys.version_info >= (3, 13):  # before, CPython does not look at what it is given
        actual += texts_of(lambda: handle(NoTuple), lambda: handle(Short))
    return x + 1, actual


@at_breaks
def exceptions_in_loops_and_handlers_around_breaks(x):
    log = []
    for n in range(4):
        try:
            try:
                x = broken(x) + n
                if n % 2:
                    raise ValueError(broken(n))
            except ValueError as error:
                log.append(broken(str(error)))
                if n > 1:
                    raise KeyError(broken(n)) from error
            finally:
                x = broken(x) * 2
                log.append(n)
        except KeyError as error:
            log.append((type(error).__name__, type(broken(error).__context__).__name__))
            x = x - 1
    return x, log


LEAVES = """
def fn(x):
    log = []
    def by_return(value):
        try:
            raise ValueError("lost")
        finally:
            log.append(BREAK("returned"))
            return BREAK(value) + 1
    def by_break(value):
        for n in range(4):
            try:
                value = value + n
                {}[n]
            finally:
                if n == 2:
                    break
                BREAK(n)
                continue
        return value
    def by_another_return(value):
        try:
            return BREAK(value) * 100
        finally:
            if log:
                return value - 1
    def by_another_error(value):
        try:
            raise KeyError("first")
        finally:
            raise IndexError(BREAK("second"))
    try:
        by_another_error(x)
    except IndexError as error:
        log.append(repr(error.__context__))
    return by_return(x), by_break(x), by_another_return(x), log
"""


@pytest.mark.filterwarnings("ignore:.*'finally' block:SyntaxWarning")
@pytest.mark.parametrize("breaks", [False, True])
def test_finally_that_leaves(breaks):
    result = module(LEAVES, BREAK=broken if breaks else lambda value: value)
    expected = {"breaks": None} if breaks else {"graphs": 1}
    same(result.fn, (X,), (Y,), **expected)


# -- comprehensions --


@program
def comprehensions(x):
    n = 7
    rows = [row * n for n, row in enumerate(x)]
    table = {n: [n * m for m in range(n)] for n in range(3) if n}
    kept = [last := n for n in range(3)]
    calls = [f() for f in [lambda: n for n in range(3)]]
    try:
        [n / (2 - n) for n in range(4)]
    except ZeroDivisionError as error:
        table["error"] = str(error)

    class Body:
        n = 9
        inside = [k for k in range(n)]

    return rows, table, kept, last, calls, n, Body.inside, {str(n) for n in (1, 1)}


def test_a_display_unpacks_what_a_break_has_split():
    def fn(x, n):
        return x + 1, (*(broken(m) for m in [n, n * 2]), 1), [*(broken(m) for m in [n]), 2]

    same(fn, (X, 1), (X, 2), (X, 3), (Y, 1), breaks=None)


@at_breaks
def comprehensions_around_breaks(x):
    n = x.mean()
    rows = [broken(row) * n for n, row in enumerate(x)]
    nested = [[broken(a) + b for a in (row, n)] for b, row in enumerate(rows) if broken(b) != 1]
    calls = [f() for f in [lambda: broken(n) for n in range(3)]]
    try:
        [broken(n) / (1 - n) for n in range(3)]
    except ZeroDivisionError:
        return n, rows, nested, calls, {k: broken(v) for k, v in enumerate(rows)}


# -- iterators that have no description of themselves since 3.14 --

ITERATORS = {
    "count": lambda n: itertools.count(n, 2),
    "cycle": lambda n: itertools.cycle([n, 2, 3]),
    "repeat": lambda n: itertools.repeat(n, 5),
    "accumulate": lambda n: itertools.accumulate([n, 2, 3]),
    "chain": lambda n: itertools.chain([n, 2], [3]),
    "compress": lambda n: itertools.compress([n, 2, 3, 4], [1, 0, 1, 1]),
    "dropwhile": lambda n: itertools.dropwhile(lambda v: v < 0, [n, 2, 3]),
    "takewhile": lambda n: itertools.takewhile(lambda v: v < 9, [n, 2, 3]),
    "filterfalse": lambda n: itertools.filterfalse(lambda v: v == 2, [n, 2, 3, 4]),
    "groupby": lambda n: (key for key, _ in itertools.groupby([n, n, 2, 3])),
    "islice": lambda n: itertools.islice([n, 2, 3, 4], 3),
    "pairwise": lambda n: itertools.pairwise([n, 2, 3, 4]),
    "starmap": lambda n: itertools.starmap(max, [(n, 2), (3, 4), (5, 6)]),
    "tee": lambda n: itertools.tee([n, 2, 3])[0],
    "zip_longest": lambda n: itertools.zip_longest([n, 2, 3], [1]),
    "product": lambda n: itertools.product([n, 2], [3, 4]),
    "permutations": lambda n: itertools.permutations([n, 2, 3]),
    "combinations": lambda n: itertools.combinations([n, 2, 3], 2),
    "zip": lambda n: zip([n, 2, 3], [4, 5, 6], strict=True),
    "map": lambda n: map(abs, [n, 2, 3]),
    "reversed": lambda n: reversed([3, 2, n]),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_around_breaks(name):
    make = ITERATORS[name]

    def fn(x, n):
        result, actual = make(n), []
        actual.append(next(result))
        graph_break()
        actual.append(next(result))
        for item, _ in zip(make(n), range(3)):
            actual.append(item)
            graph_break()
        return x + 1, actual, next(result, None)

    same(fn, (X, 1), (X, 7), (Y, 1), breaks=None)


@program.cases()
def test_program(name):
    program.run(name)
