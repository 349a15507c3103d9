"""How regions are captured around live generators, and how inner generators are left."""

from __future__ import annotations

import gc
import inspect
import itertools
import sys

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, compare_with_eager, same
from tests.support.generator_programs import (
    broken,
    endless,
    scaled,
    tensors,
    with_finally,
)
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.ones(3, 4)
PRINT = ("side_effect_native",)


def test_the_bodies_are_captured():
    def fn(x):
        with scaled(x, []) as y:
            broken()
            z = y + 1
        return z

    with CaptureCounter() as counter:
        compiled = tracer_core.compile(fn, backend="eager")
        compare(fn(X), compiled(X))
        compare(fn(Y), compiled(Y))
    assert len(counter.graphs) == 2 and len(counter.breaks) == 1 and not counter.recompiles
    report = tracer_core.explain(fn)(X)
    assert report.op_count == 2


def test_a_loop_is_a_region_whose_number_is_an_input():
    def fn(x, n):
        total = 0
        for t in tensors(x, n):
            broken()
            total = total + t.sin()
        return total

    compiled = tracer_core.compile(fn, backend="eager")
    for n in (5, 9, 30):
        compare(fn(X * 1e-3, n), compiled(X * 1e-3, n))
    with CaptureCounter() as counter:
        compare(fn(X * 1e-3, 40), compiled(X * 1e-3, 40))
    assert len(counter.graphs) <= 1  # for the argument n


def test_a_generator_that_leaves_the_function():
    """It was alive at a break, and the caller goes on with it."""

    def fn(x):
        g = tensors(x, 6)
        a = next(g)
        broken()
        b = next(g)
        return a, b, g

    compiled = tracer_core.compile(fn, backend="eager")
    for x in (X, Y, X):
        (a, b, g), (c, d, h) = fn(x), compiled(x)
        compare([a, b, next(g), g.send(None)], [c, d, next(h), h.send(None)])
        assert inspect.isgenerator(h) and h.__qualname__ == g.__qualname__
        h.close()
        assert next(h, None) is None and inspect.getgeneratorstate(h) == inspect.GEN_CLOSED


def test_it_is_closed_when_the_caller_drops_it():
    def make():
        log = []

        def fn(x):
            g = with_finally(x, log)
            a = next(g)
            broken()
            return a, g

        return fn, log

    for x in (X, Y, X):
        (eager, wanted), (target, log) = make(), make()
        compiled = tracer_core.compile(target, backend="eager")
        for fn, seen in ((eager, wanted), (compiled, log)):
            _, g = fn(x)
            seen.append("held")
            del g
            gc.collect()
            seen.append("dropped")
        assert wanted == log == ["start", "held", "closed", "dropped"]


def test_a_generator_from_outside():
    def fn(x, g):
        a = next(g)
        return x + a

    compiled = tracer_core.compile(fn, backend="eager")
    g, h = tensors(X, 4), tensors(X, 4)
    for _ in range(3):
        compare(fn(X, g), compiled(X, h))


def test_a_shell_given_to_another_compiled_function():
    first = tracer_core.compile(lambda x: _begun(x), backend="eager")
    second = tracer_core.compile(lambda g: next(g) + 1, backend="eager")
    for _ in range(3):
        g, h = _begun(X), first(X)
        with CaptureCounter() as counter:
            for _ in range(3):
                compare(next(g) + 1, second(h))
    assert not counter.breaks


def _begun(x):
    g = endless(x)
    next(g)
    broken()
    return g


def test_generators_that_may_be_one_or_two():
    """A variant captured for two generators is not used for one under two names."""

    def fn(item, two):
        return next(item) + next(two), next(item) * 2

    make = tracer_core.compile(lambda x: _begun(x), backend="eager")
    compiled = tracer_core.compile(fn, backend="eager")
    for alike in (False, True, False, True):
        g, h = endless(X), make(X)
        next(g)
        others = (g, h) if alike else (endless(X), make(X))
        if not alike:
            next(others[0])
        compare(fn(g, others[0]), compiled(h, others[1]))


def test_a_running_generator():
    """A compiled function called by the generator that it is given."""

    def fn(x, g):
        try:
            next(g)
        except ValueError as error:
            return x + 1, str(error)
        return x

    compiled = tracer_core.compile(fn, backend="eager")

    def run(call):
        def body():
            yield call(X, held[0])

        held = [body()]
        return next(held[0])

    compare(run(fn), run(compiled))
    compare(run(fn), run(compiled))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="brackets came with 3.12")
def test_a_generic_generator_function():
    from tests.support.eager_reference import module

    source = """
def fn(x):
    def twice[T](a: T):
        yield a
        yield a * 2
    total = 0
    for t in twice(x):
        print(end="", flush=[])
        total = total + t
    return total
"""
    compare_with_eager(lambda: module(source).fn, (X,), (Y,), kinds=PRINT)


def test_a_world_that_the_generator_changes():
    def make():
        seen = []

        def counting(x):
            for i in range(4):
                seen.append(i)
                yield x + len(seen)

        def fn(x):
            out = []
            for t in counting(x):
                seen.append("loop")
                broken()
                out.append(t)
            return out

        return fn, View(lambda: list(seen))

    compare_with_eager(make, (X,), (Y,), (X,), kinds=PRINT)


# -- throw() and close() at ``yield from`` --


def outcome_of(ask):
    try:
        return ask()
    except BaseException as error:
        return type(error).__name__, str(error), repr(error.__context__)


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("thrown", [None, GeneratorExit, StopIteration, BaseException, KeyError])
@pytest.mark.parametrize("leaves", ["raises", "stops", "returns", "passes", "yields"])
def test_the_inner_generator_is_left_as_in_eager(leaves, thrown):
    def inner(seen):
        try:
            yield 1
            yield 2
        finally:
            seen.append("left")
            if leaves == "raises":
                raise ValueError("left")
            if leaves == "stops":
                raise StopIteration
            if leaves == "yields":
                yield 3
            if leaves == "returns":
                return "value"

    def outer(seen):
        return (yield from inner(seen))

    def f(x):
        seen = []
        g = outer(seen)
        next(g)
        broken()
        outcome = outcome_of(g.close if thrown is None else lambda: g.throw(thrown()))
        broken()
        return x + 1, outcome, seen, outcome_of(lambda: next(g, "done"))

    same(f, (X,), (X,), breaks=None)


@pytest.mark.parametrize("given", [
    (KeyError,), (KeyError, (1, 2)), (KeyError, 3), (KeyError, KeyError(4)), (KeyError(5),),
    (KeyError(), 1), (KeyError, 1, 2), (3,), ("text",),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_throw_takes(given):
    class Raises(KeyError):
        def __init__(self):
            raise IndexError("made")

    class NoError(KeyError):
        def __new__(cls):
            return cls

    def catching():
        caught = None
        while True:
            try:
                caught = yield caught
            except (KeyError, IndexError, TypeError) as error:
                caught = type(error), error.args

    def f(x):
        g = catching()
        next(g)
        messages = [outcome_of(lambda: g.throw(*given))]
        messages += [g.throw(Raises)[0], outcome_of(lambda: g.throw(NoError))[0]]
        return x + 1, messages, next(g)

    same(f, (X,), (X,), breaks=None)


def test_a_generator_is_running_while_its_inner_one_is():
    messages = []

    class Inner:
        def __iter__(self):
            return self

        def __next__(self):
            return 1

        def send(self, value):
            messages.append(outcome_of(lambda: next(held[0])))
            return value

        def throw(self, *value):
            messages.append([repr(item) for item in value])
            messages.append(outcome_of(lambda: held[0].send(1)))
            return 2

        def close(self):
            messages.append(outcome_of(lambda: next(held[0])))

    held = []

    def outer():
        yield from Inner()

    def f(x):
        messages.clear()
        held[:] = [outer()]
        g = held[0]
        seen = [next(g), g.send(5), g.throw(KeyError), g.throw(KeyError(1))]
        g.close()
        return x + 1, seen, list(messages)

    same(f, (X,), (X,), breaks=None)


ITERATORS = {
    "repeat": lambda x: itertools.repeat(x, 5),
    "endless repeat": lambda x: itertools.repeat(x),
    "count": lambda x: itertools.count(3),
    "chain.from_iterable": lambda x: itertools.chain.from_iterable([[x, 1], [2, 3]]),
    "product": lambda x: itertools.product([1, 2], [x, 3]),
    "combinations": lambda x: itertools.combinations([x, 1, 2], 2),
    "permutations": lambda x: itertools.permutations([x, 1]),
    "with replacement": lambda x: itertools.combinations_with_replacement([x, 1], 2),
    "in a lazy one": lambda x: itertools.compress(itertools.repeat(x, 4), itertools.repeat(1)),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_of_itertools_at_a_break(name, monkeypatch):
    """Since 3.14 nothing describes them: they are made behind the break that moves there."""
    monkeypatch.setenv("TRACER_STRICT", "1")

    def fn(x):
        result = ITERATORS[name](x)
        first = next(result)
        tracer_core.graph_break()
        return first, list(itertools.islice(result, 3)), x + 1

    same(fn, (torch.ones(2),), (torch.zeros(2),), graphs=None, breaks=None)
