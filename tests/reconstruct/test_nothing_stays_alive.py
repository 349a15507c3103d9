"""What the tracer must not keep alive: models, optimizers, functions and classes of the program."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import tracer_core

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Counts(torch.nn.Module):
    def __init__(self, to_parent):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.calls = 0
        if to_parent:
            object.__setattr__(self.inner, "parent", self)

    def forward(self, x):
        return self.inner(x)


class CountsCalls(Counts):
    def forward(self, x):
        self.calls += 1
        return self.inner(x) * self.calls


MODEL = None


def call_model(x):
    return MODEL(x)


@pytest.mark.parametrize("kind, to_parent", [(Counts, False), (Counts, True), (CountsCalls, False)])
def test_a_model_dies_when_its_name_is_rebound(kind, to_parent, uncollected):
    """Not at the next call: the guards of the last one refer to it weakly."""
    global MODEL
    MODEL = kind(to_parent)
    fast = tracer_core.compile(call_model, backend="eager")
    for _ in range(5):
        fast(X)
    ends = [weakref.ref(MODEL), weakref.ref(MODEL.inner), weakref.ref(MODEL.inner[0].weight)]
    MODEL = None
    if to_parent:
        gc.collect()
    assert [end() for end in ends] == [None] * 3
    MODEL = kind(to_parent)
    torch.testing.assert_close(fast(X), MODEL.inner(X))
    MODEL = None


def test_an_optimizer_dies_when_its_name_is_rebound(uncollected):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    fast = tracer_core.compile(step, backend="eager")
    for _ in range(3):
        fast(X)
    ends = weakref.ref(model), weakref.ref(optimizer)
    model = optimizer = None
    gc.collect()
    assert [end() for end in ends] == [None, None]


def test_guards_do_not_keep_functions_and_classes():
    def make(n):
        class Scale:
            def __call__(self, x):
                return x * n

        return Scale(), lambda x: x + n

    def f(x, scale, add):
        return add(scale(x))

    fast = tracer_core.compile(f, backend="eager")
    ends = []
    for n in range(4):
        scale, add = make(n)
        for _ in range(2):
            torch.testing.assert_close(fast(X, scale, add), f(X, scale, add))
        ends += [weakref.ref(scale), weakref.ref(type(scale)), weakref.ref(add)]
    del scale, add
    gc.collect()
    assert [end() for end in ends] == [None] * 12
    scale, add = make(5)  # perhaps at the addresses of those that died
    torch.testing.assert_close(fast(X, scale, add), f(X, scale, add))


def test_a_traced_class_is_no_subclass_that_the_program_sees():
    class Base:
        pass

    def f(x):
        class Derived(Base):
            factor = 3

        return x * Derived.factor, len(Base.__subclasses__())

    fast = tracer_core.compile(f, backend="eager")
    for _ in range(3):
        gc.collect()
        torch.testing.assert_close(fast(X), (X * 3, 1))
