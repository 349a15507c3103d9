"""Generators that real code goes on with after a graph break, bodies that break, awaited ones, and
what they say of themselves."""

from __future__ import annotations

import inspect
import itertools
import sys
import types

import pytest
import torch

import tracer_core
from tests.support.generator_programs import AtBreaks, broken, echo, endless, tensors

X, Y = torch.randn(3, 4), torch.ones(3, 4)
program = AtBreaks()
PRINT = ("side_effect_native",)


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


@pytest.mark.parametrize("name", program)
def test_generator_at_a_break(name):
    program.run(name)
