"""What a program gives to a compiled function, and what it gets, dies where it does in eager: after
the first call as after the later ones, and without the collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.guard_facts import Box


def inputs(*shapes, grad=False):
    return lambda call: [torch.randn(shape, requires_grad=grad) for shape in shapes]


def broken(x, w):
    y = x @ w
    tracer_core.graph_break()
    return y.relu()


def broken_in_a_loop(x):
    for _ in range(3):
        x = x * 2
        tracer_core.graph_break()
    return x


def raising(x):
    y = x * 2
    raise ValueError(y.shape)


def raising_in_the_third_call(x, index):
    return x[index] * 2


def raising_behind_a_break(x, index):
    tracer_core.graph_break()
    return x[index] * 2


def positions(call):
    return [torch.randn(8, 8), torch.tensor([0, 1, 100 if call == 2 else 2])]


def suspended(x):
    def items():
        y = x * 2
        for number in range(3):
            yield y + number

    return next(items())


def suspended_in_a_handler(x):
    def items():
        y = x * 2
        try:
            yield y + 1
        except KeyError:
            yield y

    return next(items())


def exhausted(x):
    return sum(x * number for number in range(3))


def written(box, x):
    box.last = x * 2
    return box.last + 1


def drawn(x, generator):
    return x + torch.rand(8, 8, generator=generator)


def chosen(x):
    return x[x > 0] * 2


def hooked(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    return y


def several(x):
    return x * 2, x.sum(), x[0]


def module(call):
    return [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.randn(4, 8)]


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def training(call):
    model = nn.Linear(8, 8)
    return [model, torch.optim.Adam(model.parameters()), torch.randn(4, 8)]


PROGRAMS = {
    "inference": (lambda x: x.relu() + 1, inputs((8, 8))),
    "training": (lambda x, w: (x @ w).relu().square(), inputs((8, 8), (8, 8), grad=True)),
    "several outputs": (several, inputs((8, 8), grad=True)),
    "dropout": (lambda x: torch.dropout(x, 0.5, True), inputs((8, 8), grad=True)),
    "a graph break": (broken, inputs((8, 8), (8, 8), grad=True)),
    "breaks in a loop": (broken_in_a_loop, inputs((8, 8), grad=True)),
    "an error of the program": (raising, inputs((8, 8))),
    "an error of an operator": (torch.matmul, inputs((8, 8), (3, 8))),
    "an error of a graph": (raising_in_the_third_call, positions),
    "an error of a later graph": (raising_behind_a_break, positions),
    "changing sizes": (lambda x: x.sin().sum(0), lambda call: [torch.randn(call + 2, 8)]),
    "changing numbers": (lambda x, n: x * n, lambda call: [torch.randn(8), call + 2]),
    "sizes of data": (chosen, inputs((8, 8), grad=True)),
    "a suspended generator": (suspended, inputs((8, 8))),
    "a generator in a handler": (suspended_in_a_handler, inputs((8, 8))),
    "an exhausted generator": (exhausted, inputs((8, 8))),
    "an attribute": (written, lambda call: [Box(), torch.randn(8)]),
    "a random generator": (drawn, lambda call: [torch.randn(8, 8), torch.Generator()]),
    "a tensor hook": (hooked, inputs((8, 8), grad=True)),
    "a module": (lambda model, x: model(x), module),
    "a training step": (step, training),
}


def living(program, make, calls=4):
    """Which objects of each call live on after it: arguments, parameters and results. (A
    torch.Generator has weak references since PyTorch 2.12.)"""
    actual = []
    for call in range(calls):
        torch.manual_seed(call)
        args = make(call)
        try:
            result = program(*args)
        except (ValueError, IndexError, RuntimeError):
            result = None
        results = list(result) if isinstance(result, tuple) else [result]
        if result is not None and results[0].requires_grad:
            results[0].sum().backward()
        modules = [arg for arg in args if isinstance(arg, nn.Module)]
        tracked = [*args, *(p for module in modules for p in module.parameters()), *results]
        actual.append([weakref.ref(item) for item in tracked if type(item).__weakrefoffset__])
        del args, result, results, modules, tracked
        yield [type(ref()).__name__ for refs in actual for ref in refs if ref() is not None]


@pytest.fixture(scope="module", autouse=True)
def imports_of_torch():
    """The first fake of a tensor with a history has torch import modules whose import leaves frames
    to the collector, once in a process."""
    tracer_core.compile(broken)(*inputs((8, 8), (8, 8), grad=True)(0))
    gc.collect()


@pytest.mark.sweep(keep=16)
@pytest.mark.parametrize("backend", ["inductor", "aten_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_of_a_call_lives_on(name, backend):
    program, make = PROGRAMS[name]
    gc.collect()
    gc.disable()
    try:
        expected = list(living(program, make))
        assert list(living(tracer_core.compile(program, backend=backend), make)) == expected
    finally:
        gc.enable()


def test_a_callable_backend_does_not_make_the_core_keep_the_examples():
    fast = tracer_core.compile(lambda x: x * 2, backend=lambda gm, examples: gm.forward)
    x = torch.randn(8)
    ref = weakref.ref(x)
    fast(x)
    del x
    gc.collect()
    assert ref() is None
