"""Generators that are alive at a graph break: captured before and after it, and real generators to
everybody else.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import sys
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import View, same, twin
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.ones(3, 4)


def tensors(x, n):
    for i in range(n):
        x = x * 2 + i
        yield x


def broken():
    print(end="", flush=[])


def endless(x):
    while True:
        x = x.sin()
        yield x


def echo(x):
    got = yield x + 1
    while got is not None:
        x = x * got
        got = yield x
    return x - 1


def delegating(x):
    result = yield from echo(x)
    yield result * 10


def with_finally(x, log):
    log.append("start")
    try:
        yield x + 1
        yield x + 2
    finally:
        log.append("closed")


@contextlib.contextmanager
def scaled(x, log):
    log.append("enter")
    y = x * 3
    try:
        yield y
        log.append("normal")
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append("exit")


PROGRAMS = {}


def program(graphs=None, breaks=None, kinds=None):
    def note(fn):
        PROGRAMS[fn.__name__] = fn, graphs, breaks, kinds
        return fn

    return note


PRINT = ("side_effect_native",)


@program(kinds=PRINT)
def a_loop_over_a_generator(x, log):
    total = 0
    for t in tensors(x, 5):
        broken()
        total = total + t.cos()
    return total


@program(kinds=PRINT)
def a_loop_over_an_endless_generator(x, log):
    total, seen = 0, []
    for t in endless(x):
        broken()
        total = total + t
        seen.append(1)
        if len(seen) > 3:
            break
    return total


@program(graphs=2, kinds=PRINT)
def next_on_both_sides(x, log):
    numbers = tensors(x, 4)
    first = next(numbers)
    broken()
    return first + next(numbers), list(numbers), next(numbers, "none")


@program(graphs=2, kinds=PRINT)
def not_started_before_the_break(x, log):
    numbers = tensors(x + 1, 3)
    broken()
    return list(numbers)


@program(kinds=PRINT)
def finished_before_the_break(x, log):
    numbers = tensors(x, 2)
    both = list(numbers)
    broken()
    return both, list(numbers), next(numbers, None)


@program(graphs=3, kinds=PRINT)
def values_sent_in(x, log):
    e = echo(x)
    a = next(e)
    broken()
    b = e.send(2.0)
    broken()
    c = e.send(3.0)
    try:
        e.send(None)
    except StopIteration as stop:
        return a, b, c, stop.value
    return a


@program(graphs=3, kinds=PRINT)
def yield_from_across_breaks(x, log):
    d = delegating(x)
    a = next(d)
    broken()
    b = d.send(2.0)
    broken()
    return a, b, next(d), list(d)


@program(graphs=3, kinds=PRINT)
def a_context_manager(x, log):
    with scaled(x, log) as y:
        broken()
        z = y + 1
    broken()
    return z * 2


@program(kinds=PRINT)
def context_managers_in_each_other(x, log):
    with scaled(x, log) as y, scaled(y, log) as z:
        broken()
        w = z + y
        with scaled(w, log) as v:
            w = v + 1
            broken()
    return w


@program(kinds=PRINT)
def a_context_manager_that_catches(x, log):
    with scaled(x, log) as y:
        broken()
        raise ValueError("wrong")
    broken()
    return y + 1


@program(kinds=PRINT)
def a_context_manager_that_lets_through(x, log):
    try:
        with scaled(x, log) as y:
            broken()
            {}["missing"]
    except KeyError as error:
        log.append(repr(error))
    return y + 1


@program()
def an_exit_stack(x, log):
    with contextlib.ExitStack() as stack:
        y = stack.enter_context(scaled(x, log))
        broken()
        z = stack.enter_context(scaled(y, log))
        broken()
    return y + z


@program(kinds=PRINT)
def thrown_into(x, log):
    def catching(x):
        while True:
            try:
                yield x
                x = x + 1
            except ValueError as error:
                log.append(str(error))
                x = x * 2

    c = catching(x)
    a = next(c)
    broken()
    b = c.throw(ValueError("one"))
    broken()
    return a, b, next(c)


@program(kinds=PRINT)
def thrown_out_again(x, log):
    numbers = endless(x)
    a = next(numbers)
    broken()
    try:
        numbers.throw(KeyError("k"))
    except KeyError as error:
        log.append(repr(error))
    return a, list(numbers)


@program(kinds=PRINT)
def closed_after_the_break(x, log):
    g = with_finally(x, log)
    a = next(g)
    broken()
    log.append("before")
    g.close()
    log.append("after")
    return a, next(g, None)


@program()
def dropped_after_the_break(x, log):
    g = with_finally(x, log)
    a = next(g)
    broken()
    log.append("before")
    del g
    log.append("after")
    return a + 1


@program()
def left_at_the_end(x, log):
    g = with_finally(x, log)
    a = next(g)
    broken()
    log.append("last")
    return a + 1


@program()
def left_by_break(x, log):
    for t in with_finally(x, log):
        broken()
        x = x + t
        break
    log.append("after")
    return x


@program(kinds=PRINT)
def raises_inside_after_the_break(x, log):
    def failing(x):
        yield x + 1
        raise ValueError("inside")

    g = failing(x)
    a = next(g)
    broken()
    try:
        next(g)
    except ValueError as error:
        log.append(str(error))
    return a, next(g, "closed")


@program(kinds=PRINT)
def in_an_attribute(x, log):
    box = types.SimpleNamespace(g=tensors(x, 3))
    a = next(box.g)
    broken()
    b = next(box.g)
    broken()
    return a, b, list(box.g)


@program(kinds=PRINT)
def in_a_list_and_a_dictionary(x, log):
    held = [tensors(x, 3), {"e": endless(x)}]
    a = next(held[0])
    broken()
    b = next(held[1]["e"]), next(held[0])
    broken()
    return a, b, next(held[1]["e"])


@program(kinds=PRINT)
def two_of_one_function(x, log):
    item, two = tensors(x, 4), tensors(x + 1, 4)
    next(item)
    broken()
    a = next(item), next(two)
    broken()
    return a, next(item), next(two)


@program(kinds=PRINT)
def one_under_two_names(x, log):
    item = tensors(x, 4)
    other = item
    a = next(item)
    broken()
    b = next(other)
    c = next(item)
    broken()
    return a, b, c, item is other, next(other)


@program(kinds=PRINT)
def a_generator_over_a_generator(x, log):
    def doubled(inner):
        for t in inner:
            yield t * 2

    total = 0
    for t in doubled(tensors(x, 4)):
        broken()
        total = total + t
    return total


@program(kinds=PRINT)
def a_generator_expression(x, log):
    total = 0
    for t in (v * 2 for v in [x, x + 1, x + 2]):
        broken()
        total = total + t
    return total


@program(kinds=PRINT)
def a_closure_that_counts(x, log):
    count = 0

    def counting():
        nonlocal count
        while count < 5:
            count += 1
            yield x * count

    out = []
    for t in counting():
        broken()
        out.append(t)
        count += 1
    return out, count


@program()
def a_recursive_generator(x, log):
    def walk(x, depth):
        yield x
        if depth:
            yield from walk(x + 1, depth - 1)
            yield from walk(x * 2, depth - 1)

    total = 0
    for t in walk(x, 2):
        broken()
        total = total + t
    return total


@program(kinds=PRINT)
def its_type_and_name(x, log):
    g = tensors(x, 2)
    a = next(g)
    broken()
    log.append(
        (
            inspect.isgenerator(g),
            type(g) is types.GeneratorType,
            g.__name__,
            isinstance(g, types.GeneratorType),
        )
    )
    return a, next(g)


@program()
def real_code_goes_on_with_it(x, log):
    @tracer_core.disable
    def take(g, n):
        log.append((inspect.isgenerator(g), type(g).__name__, g.__name__))
        return [next(g) for _ in range(n)]

    g = tensors(x, 6)
    a = next(g)
    b = take(g, 2)
    c = next(g)
    broken()
    d = take(g, 1)
    return a, b, c, d, list(g)


@program()
def real_code_sends_and_throws(x, log):
    @tracer_core.disable
    def talk(e):
        try:
            e.throw(ValueError("no"))
        except ValueError as error:
            log.append(str(error))
        return list(e)

    e = echo(x)
    a = next(e)
    broken()
    b = e.send(2.0)
    return a, b, talk(e)


@program()
def the_body_itself_breaks(x, log):
    def printing(x):
        for i in range(4):
            x = x + 1
            if i == 2:
                print(end="", flush=[])
            yield x

    total = 0
    for t in printing(x):
        total = total * 2 + t
    return total


@program()
def the_list_grows(x, log):
    items = [x, x + 1]

    def over():
        for item in items:
            yield item * 2

    out = []
    for t in over():
        broken()
        if len(items) < 5:
            items.append(t)
        out.append(t)
    return out


@program(kinds=PRINT)
def written_to_in_place(x, log):
    def writing(x):
        y = x.clone()
        while True:
            y.add_(1)
            yield y

    g = writing(x)
    a = next(g)
    broken()
    b = next(g)
    a.mul_(2)
    broken()
    return a, next(g), a is b


def printed(value):
    broken()
    return value


@program()
def its_methods_are_on_the_stack_at_the_break(x, log):
    e = echo(x)
    a = next(e)
    b = e.send(printed(2.0))
    send = e.send
    broken()
    c = send(printed(3.0))
    try:
        e.throw(printed(ValueError("no")))
    except ValueError as error:
        log.append(str(error))
    g = endless(x)
    d = next(g) + printed(1)
    f = g.__next__() + printed(2)
    g.close()
    return a, b, c, d, f, list(e), list(g)


@program()
def what_only_stands_for_an_iterator(x, log):
    counting = itertools.count(x)
    a = next(counting)
    broken()
    log.append((type(counting).__name__, inspect.isgenerator(counting)))
    try:
        itertools.count([1])
    except TypeError as error:
        log.append(str(error))
    return a, next(counting)


@program()
def zips_and_maps(x, log):
    out = []
    for i, (a, b) in enumerate(zip(tensors(x, 3), map(torch.sin, tensors(x, 3)))):
        broken()
        out.append(a * b + i)
    return out


@types.coroutine
def asked(x):
    got = yield x
    return got * 2


@program()
def an_awaited_generator(x, log):
    """``await`` takes a generator by the flags of its code."""

    async def waiting(item):
        return await item

    g = asked(x)
    broken()
    task = waiting(g)
    first = task.send(None)
    try:
        task.send(x + 1)
    except StopIteration as stop:
        return first, stop.value


@program(kinds=PRINT)
def what_generators_say_of_themselves(x, log):
    g = asked(x)
    log.append((g.__class__ is types.GeneratorType, g.gi_code is asked.__code__, g.gi_running))
    next(g)
    broken()
    log.append((g.gi_code is asked.__code__, g.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE))
    log.append((inspect.getgeneratorstate(g), g.gi_yieldfrom, inspect.isawaitable(g)))
    g.close()
    log.append((inspect.getgeneratorstate(g), g.gi_frame))
    return x + 1


@program()
def generators_of_ordinary_functions(x, log):
    """types.coroutine wraps what such a function returns, and calls it each time."""

    def begin():
        log.append("called")
        return endless(x)

    begin = types.coroutine(begin)
    item, two = begin(), begin()
    broken()
    log.append((type(item).__name__, item.gi_code is endless.__code__, item.__await__() is item))
    return next(item), next(item), next(two)


@program()
def thrown_from_c(x, log):
    """The inner generator gets what C code throws into the outer one."""

    def inner():
        try:
            yield x
        except KeyError as error:
            log.append(str(error))
            yield x + 1

    def outer():
        yield from inner()

    g = outer()
    a = next(g)
    broken()
    (b,) = map(g.throw, [KeyError("thrown")])
    return a, b


@program()
def a_generator_as_a_key(x, log):
    g = endless(x)
    table = {g: 2, (g, 1): 3}
    broken()
    return next(g) * table[g] * table[g, 1] + (g in {g})


@program()
def a_generator_that_ignores_its_end(x, log):
    def stubborn():
        try:
            yield x
        except GeneratorExit:
            yield x + 1

    def dropped():
        g = stubborn()
        return next(g)

    old = sys.unraisablehook
    sys.unraisablehook = lambda messages: log.append((messages.exc_type, str(messages.exc_value)))
    try:
        a = dropped()
        log.append("dropped")
    finally:
        sys.unraisablehook = old
    return a + 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_generator_at_a_break(name):
    fn, graphs, breaks, kinds = PROGRAMS[name]

    def make():
        log = []
        return (lambda x: fn(x, log)), log

    twin(make, (X,), (Y,), (X,), (X + 1,), graphs=graphs, breaks=breaks, kinds=kinds)


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


def test_a_loop_is_a_segment_whose_number_is_an_input():
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
    twin(lambda: module(source).fn, (X,), (Y,), kinds=PRINT)


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

    twin(make, (X,), (Y,), (X,), kinds=PRINT)


# -- throw() and close() at ``yield from`` --


def outcome_of(ask):
    try:
        return ask()
    except BaseException as error:
        return type(error).__name__, str(error), repr(error.__context__)


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
