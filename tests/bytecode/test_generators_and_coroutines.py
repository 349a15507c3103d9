"""Generators as values, coroutines and async generators; functions whose globals, closures and
keywords change between the calls."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import torch

import tracer_core
from tests.support.eager_reference import Kw, compare_with_eager, module
from tests.support.named_programs import Programs, X, Y
from tracer_core.testing import CaptureCounter

program = Programs()


# -- generators as values
# -----------------------------------------------------------------------------------------------


@program
def generator_protocol(x):
    def gen():
        received = []
        try:
            while True:
                received.append((yield len(received)))
        except KeyError as error:
            yield f"caught {error}"
        finally:
            received.append("closed")
        return received

    g = gen()
    steps = [next(g), g.send("a"), g.send("b"), g.throw(KeyError("k"))]
    try:
        next(g)
    except StopIteration as stop:
        return x + 1, steps, stop.value, list(g)


@program
def yield_from_passes_everything(x):
    def inner():
        try:
            got = yield 1
            yield got
        except ValueError:
            yield "thrown"
        return "result"

    def outer():
        result = yield from inner()
        yield result
        yield from [7, 8]

    g, h = outer(), outer()
    first = [next(g), g.send("sent"), *g]
    second = [next(h), h.throw(ValueError), *h]
    return x + 1, first, second


@program
def closing_generators(x):
    log = []

    def gen(name):
        try:
            yield 1
            yield 2
        finally:
            log.append(name)

    a, b, c = gen("a"), gen("b"), gen("c")
    next(a)
    a.close()
    b.close()
    for _ in c:
        break
    c.close()
    try:
        a.send(None)
    except StopIteration:
        log.append("finished")
    return x + 1, log


@program
def generator_ignores_exit(x):
    def gen():
        try:
            yield 1
        except GeneratorExit:
            yield 2

    g = gen()
    next(g)
    try:
        g.close()
    except RuntimeError as error:
        return x + 1, str(error)


@program
def generator_stop_iteration_inside(x):
    def gen():
        yield 1
        raise StopIteration(3)

    try:
        list(gen())
    except RuntimeError as error:
        return x + 1, str(error), type(error.__cause__).__name__


@program
def generators_feed_each_other(x):
    def numbers():
        n = 0
        while True:
            yield n
            n += 1

    def taken(source, n):
        for value in source:
            if n == 0:
                return
            n -= 1
            yield value

    def doubled(source):
        yield from (v * 2 for v in source)

    return x * sum(doubled(taken(numbers(), 5))), [*zip(taken(numbers(), 3), "abc", strict=True)]


@program
def generator_methods_and_recursive_generators(x):
    class Tree:
        def __init__(self, value, *kids):
            self.value, self.kids = value, kids

        def __iter__(self):
            yield self.value
            for kid in self.kids:
                yield from kid

    tree = Tree(1, Tree(2, Tree(3)), Tree(4))
    return x * sum(tree), list(tree), max(tree), 3 in tree, dict.fromkeys(tree)


@program
def context_manager_from_a_generator_with_yield_value(x):
    @contextlib.contextmanager
    def scaled(k):
        try:
            yield x * k
        except ZeroDivisionError:
            pass

    with scaled(2) as a, scaled(3) as b:
        c = a + b
        1 // 0
    return c


# -- async
# ---------------------------------------------------------------------------------------------------------------


async def doubled(x):
    await asyncio.sleep(0)
    return x * 2


async def counted(x, n):
    for i in range(n):
        yield x + i


@contextlib.asynccontextmanager
async def scale(k):
    yield k


async def everything(x):
    total = await doubled(x)
    async for v in counted(x, 3):
        total = total + v
    async with scale(3) as k:
        total = total * k
    return total, [v async for v in counted(x, 2)], await asyncio.gather(doubled(x), doubled(total))


@program(graphs=None, breaks=None, kinds=("async_function", "native_python"))
def run_a_coroutine(x):
    y = x + 1
    return asyncio.run(doubled(y)) + 1


@program(graphs=None, breaks=None, kinds=("async_function", "native_python"))
def run_every_async_statement(x):
    return asyncio.run(everything(x))


@pytest.mark.parametrize("make", [doubled, counted], ids=["coroutine", "generator"])
def test_a_compiled_async_function_runs_as_it_is(make):
    compiled = tracer_core.compile(make, backend="eager")

    async def run(fn, *args):
        result = fn(*args)
        return [v async for v in result] if make is counted else await result

    extra = (2,) if make is counted else ()
    with CaptureCounter() as counter:
        for x in (X, Y):
            torch.testing.assert_close(
                asyncio.run(run(compiled, x, *extra)), asyncio.run(run(make, x, *extra))
            )
    assert {kind for kind, _, _ in counter.breaks} == {"async_function"}


def test_a_compiled_generator_function_gives_a_generator():
    def gen(x, n):
        for i in range(n):
            yield x * i

    compiled = tracer_core.compile(gen, backend="eager")
    for n in (2, 3):
        torch.testing.assert_close(list(compiled(X, n)), list(gen(X, n)))


# -- worlds that change between the calls
# ---------------------------------------------------------------------------------


def test_keyword_arguments_of_the_compiled_function():
    def f(x, /, scale=2, *rest, shift=0, **named):
        return x * scale + shift, rest, named

    compare_with_eager(
        lambda: f,
        (X,),
        (X, 3),
        (X, 3, 4, 5),
        (X, Kw(shift=1, z=2)),
        (Y, Kw(scale=4)),
        (X,),
        breaks=0,
    )


def test_globals_of_a_module_change():
    def make():
        result = module(
            "K = 2\n"
            "def helper(x): return x * K\n"
            "def f(x):\n"
            "    global COUNT\n"
            "    COUNT = COUNT + 1\n"
            "    return helper(x) + COUNT\n",
            COUNT=0,
        )
        return result.f, result

    compare_with_eager(
        make,
        (X,),
        (Y,),
        lambda m: setattr(m, "K", 5),
        (X,),
        lambda m: setattr(m, "helper", lambda x: x - 1),
        (X,),
        breaks=0,
    )


def test_closure_is_rebound_between_calls():
    def make():
        k = 2

        def f(x):
            return x * k

        def rebind(_):
            nonlocal k
            k += 1

        f.rebind = rebind
        return f, [rebind]

    compare_with_eager(
        make, (X,), lambda world: world[0](None), (X,), lambda world: world[0](None), (Y,), breaks=0
    )


@program.cases()
def test_syntax(name):
    program.run(name)
