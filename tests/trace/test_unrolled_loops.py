"""Long loops of eager Python: a trace does not unroll them, and regions without graphs end."""

import sys

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tracer_core.testing import CaptureCounter
from tracer_core.trace import unrolled_loops

X, Y = torch.linspace(-1, 1, 6), torch.linspace(0, 3, 6)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(unrolled_loops, "MAX_INSTRUCTIONS_WITHOUT_OPERATOR", 2_000)


def table(n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return total


def begins_with_a_loop(x, n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return x.sin() + total


def calls_a_loop(x, n):
    total = table(n)
    return x.sin() + total


def calls_a_loop_after_an_operator(x, n):
    x = x.exp()
    total = table(n)
    return x.sin() + total


def has_a_loop_in_the_middle(x, n):
    y = x.exp() * 2
    total, i = 0, 0
    while i < n:
        total += i * i % 7
        i += 1
    return y.sin() + total


def calls_what_has_a_loop_in_the_middle(x, n):
    return has_a_loop_in_the_middle(x.cos(), n).tanh()


def steps(k):
    return k if k < 2 else steps(k - 1) + steps(k - 2)


def calls_what_calls_itself(x, n):
    return x.exp() + steps(16) % n


def sorts_with_a_key(x, n):
    y = x.exp()
    order = sorted(range(n), key=lambda i: (i * 7919) % n)
    return y + order[5]


def catches_what_a_loop_raises(x, n):
    y, i = x.exp(), 0
    try:
        while True:
            i += 1
            [1, 2][i // n * 2]
    except IndexError as error:
        return y.sin() + i, str(error)


def loops_in_a_generator(x, n):
    def halves():
        i = n
        while i:
            i -= 1
            if i % 500 == 0:
                yield i

    return x.exp() + sum(halves())


PROGRAMS = [
    begins_with_a_loop, calls_a_loop, calls_a_loop_after_an_operator, has_a_loop_in_the_middle,
    calls_what_has_a_loop_in_the_middle, calls_what_calls_itself, sorts_with_a_key, catches_what_a_loop_raises,
    loops_in_a_generator,
]  # fmt: skip


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_values(function):
    same(function, (X, 3000), (Y, 3000), (X, 3001), (Y, 10), (X, 3000), breaks=None)


@pytest.mark.parametrize(
    ("function", "graphs"),
    [
        (begins_with_a_loop, 0),
        (calls_a_loop, 1),
        (calls_a_loop_after_an_operator, 2),
        (has_a_loop_in_the_middle, 1),
        (calls_what_has_a_loop_in_the_middle, 2),
        (calls_what_calls_itself, 2),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_operators_around_the_loop_stay_in_graphs(function, graphs):
    compiled = tracer_core.compile(function, backend="eager")
    with CaptureCounter() as counter:
        for _ in range(3):
            assert torch.equal(compiled(X, 3000), function(X, 3000))
    assert len(counter.graphs) == graphs, counter.graphs
    assert not counter.recompiles


def test_fullgraph_unrolls_loops():
    compiled = tracer_core.compile(has_a_loop_in_the_middle, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, 3000), has_a_loop_in_the_middle(X, 3000))


def test_a_loop_with_operators_is_unrolled():
    def f(x):
        for i in range(300):
            x = x + sum(range(i % 3)) * 0.5
        return x

    same(f, (X,), (Y,), breaks=0)


def in_python(name):
    """Returns whether CPython runs a function that has this variable."""
    frame = sys._getframe(1)
    while frame is not None and name not in frame.f_locals:
        frame = frame.f_back
    return frame is not None


def test_regions_without_graphs_are_left():
    ask = tracer_core.disable(in_python)

    def f(x, n):
        y, left = x.exp(), []
        for _ in range(n):
            left.append(ask("left"))
        return y.sin(), left

    compiled = tracer_core.compile(f, backend="eager")
    first, second = compiled(X, 3000)[1], compiled(X, 3000)[1]
    assert not any(first[:400])
    assert all(first[-400:])
    assert all(second[2:])  # the next calls leave at once
    assert torch.equal(compiled(X, 3000)[0], X.exp().sin())


def test_regions_with_graphs_are_kept():
    ask = tracer_core.disable(in_python)

    def f(x, n):
        left = []
        for _ in range(n):
            x = x + 1
            left.append(ask("left"))
        return x, left

    compiled = tracer_core.compile(f, backend="eager")
    x, left = compiled(X, 1500)
    assert torch.equal(x, f(X, 1500)[0])
    assert not any(left)
