"""Attributes of classes, functions and generators, tools that watch and the garbage collector, which
changed between CPython 3.11 and 3.14."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import weakref

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.graph_breaks import broken
from tests.support.named_programs import Programs, X, Y, texts_of

program = Programs()
at_breaks = program(graphs=None, breaks=None)


# -- attributes of classes, functions and generators --


@at_breaks
def attributes_of_the_class_of_classes(x):
    def wrapper(*args):
        return args

    texts = texts_of(lambda: functools.update_wrapper(wrapper, type))
    return wrapper(x)[0] + 1, texts, wrapper.__name__, wrapper.__doc__ == type.__doc__


@program
def attributes_that_compilers_write(x):
    class Box:
        """Some
        text."""

        def __init__(self):
            self.a, self.b = x, 1

        def get(self):
            self.c = self.a
            return self.a

    result = {n: v for n, v in vars(Box).items() if n in ("__static_attributes__", "__doc__")}
    line = (
        getattr(Box, "__firstlineno__", 0) - attributes_that_compilers_write.__code__.co_firstlineno
    )
    return Box().get() + 1, sorted(map(str, result.items())), line, list(vars(Box))


@program
def the_state_of_a_generator(x):
    def inner():
        got = yield 1
        yield got

    def counted():
        messages.append((result.gi_running, result.gi_suspended))
        yield x + 1
        yield from inner()
        return 5

    messages = []
    result = counted()
    for sent in (None, None, "sent"):
        messages.append((result.gi_running, result.gi_suspended, result.gi_yieldfrom is None))
        messages.append(result.send(sent))
    messages.append(result.close())
    messages.append((result.gi_running, result.gi_suspended, result.gi_code.co_name))
    return x, messages


@at_breaks
def the_frame_of_a_generator(x):
    result = (row for row in x)
    messages = [inspect.getgeneratorstate(result)]
    first = next(result)
    messages += [inspect.getgeneratorstate(result), result.gi_frame is None, result.close()]
    return first, messages, inspect.getgeneratorstate(result), result.gi_frame


@program
def what_closing_a_generator_returns(x):
    def counted():
        try:
            yield x
        except GeneratorExit:
            return x * 2

    def outer():
        return (yield from counted())

    fresh, begun, nested = counted(), counted(), outer()
    return next(begun), next(nested), fresh.close(), begun.close(), nested.close(), begun.close()


@at_breaks
def generators_around_breaks(x):
    def counted():
        with contextlib.suppress(ValueError):
            yield broken(x) + 1
            yield broken(x) * 2
        try:
            yield 3
        except GeneratorExit:
            return broken(x)

    result = counted()
    first = next(result)
    second = result.throw(ValueError)
    return first, broken(second), result.gi_suspended, broken(result).close()


# -- tools that watch, the garbage collector --

MONITORED = pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of 3.12")


@contextlib.contextmanager
def watching(events, heard):
    """Has a tool hear of events in this file's functions."""
    tool = sys.monitoring.DEBUGGER_ID

    def hear(code, *details):
        if code.co_filename == __file__:
            heard.append((code.co_name, *map(str, details)))

    sys.monitoring.use_tool_id(tool, "test")
    try:
        for event in events:
            sys.monitoring.register_callback(tool, event, hear)
        sys.monitoring.set_events(tool, sum(events))
        yield
    finally:
        sys.monitoring.set_events(tool, 0)
        for event in events:
            sys.monitoring.register_callback(tool, event, None)
        sys.monitoring.free_tool_id(tool)


def watched_program(x):
    total = x
    for n in range(3):
        total = total + n if n % 2 else total * 2
    return [row for row in total], broken(total)


@MONITORED
@pytest.mark.parametrize("when", ["from the first call on", "from the second call on"])
def test_a_tool_watches_the_calls(when):
    events = sys.monitoring.events
    kinds = [events.PY_START, events.PY_RETURN, events.LINE, events.INSTRUCTION, events.CALL]
    kinds += [events.BRANCH, events.JUMP, events.RAISE]
    compiled = tracer_core.compile(watched_program, backend="eager")
    if when == "from the second call on":
        compiled(X)
    for x in (X, Y, X):
        with watching(kinds, []):
            got = compiled(x)
        torch.testing.assert_close(got, watched_program(x))


@MONITORED
def test_a_program_sets_a_tool():
    def inner(x):
        return x + 1

    def fn(x):
        heard = []
        with watching([sys.monitoring.events.LINE], heard):
            y = inner(x)
        return y, [item for item in heard if item[0] == "inner"]

    same(fn, (X,), (X,), graphs=0, breaks=None)


class Node:
    """Part of a cycle that tells when it ends."""

    def __init__(self, name, log):
        self.name, self.log, self.itself = name, log, self

    def __del__(self):
        self.log.append(self.name)


@pytest.fixture
def without_collections():
    """Cycles end where the program collects them, not when CPython's collector happens to run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_cycles_are_collected_as_in_eager(without_collections):
    def make():
        log, kept = [], []

        def fn(x):
            node = Node("a", log)
            kept.append(weakref.ref(node))
            del node
            y = x + 1
            gc.collect()
            Node("b", log)
            gc.collect()
            return y * 2, list(log), [item() is None for item in kept]

        return fn, log

    compare_with_eager(make, (X,), (Y,), (X,), breaks=None)


def test_a_full_collection_between_calls(without_collections):
    def make():
        log = []

        def fn(x):
            loop = [x]
            loop.append(loop)
            Node("a", log)
            return x + len(loop)

        return fn, log

    compare_with_eager(
        make, (X,), lambda log: gc.collect(), (Y,), lambda log: gc.collect(), (X,), breaks=None
    )


@pytest.mark.sweep(keep=3)
@program.cases()
def test_program(name):
    program.run(name)
