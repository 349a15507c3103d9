"""Generators that are alive at a graph break: captured before and after it, and real generators to
everybody else.
"""

from __future__ import annotations

import contextlib
import types

import pytest
import torch

from tests.support.generator_programs import (
    AtBreaks,
    broken,
    echo,
    endless,
    scaled,
    tensors,
    with_finally,
)

X, Y = torch.randn(3, 4), torch.ones(3, 4)


def delegating(x):
    result = yield from echo(x)
    yield result * 10


program = AtBreaks()
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


@pytest.mark.parametrize("name", program)
def test_generator_at_a_break(name):
    program.run(name)
