"""Generators that are alive at a graph break, and a register of programs that use them."""

from __future__ import annotations

import contextlib

import torch

from tests.support.eager_reference import compare_with_eager

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


class AtBreaks(dict):
    """Registers programs of a tensor and a list; `run` compares one of them with eager mode."""

    def __call__(self, graphs=None, breaks=None, kinds=None):
        def note(fn):
            self[fn.__name__] = fn, {"graphs": graphs, "breaks": breaks, "kinds": kinds}
            return fn

        return note

    def run(self, name):
        fn, expected = self[name]

        def make():
            log = []
            return (lambda x: fn(x, log)), log

        compare_with_eager(make, (X,), (Y,), (X,), (X + 1,), **expected)
