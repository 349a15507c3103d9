"""Modes that a program enters inside, and attributes of threads."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import tracer_core
from tests.support.eager_reference import View, compare_with_eager, same
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# Torch-function modes


class Log(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append((func.__name__, len(args), sorted(kwargs or {}), types))
        return func(*args, **(kwargs or {}))


class Scale(TorchFunctionMode):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def __torch_function__(self, func, types, args=(), kwargs={}):
        out = func(*args, **kwargs)
        return out * self.by if func in (torch.sin, nn.functional.relu, torch.Tensor.add) else out


class Sine(TorchFunctionMode):
    def __enter__(self):
        self.entered = True
        return super().__enter__()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            with Scale(3):
                return torch.sin(args[0])
        return func(*args, **(kwargs or {}))


LAYER = nn.Linear(4, 4)


def logged(x):
    with Log() as log:
        y = nn.functional.relu(LAYER(x) + 1).sum(0) * torch.ones(4)
        z = torch.cat([y, y.clone()])
        z[1] = x.shape[0]
        z = 2 - -(torch.add(z, 1, alpha=2) ** 2 > 3).float()
        z += x.T.dim()
    return z, y, log.calls


def nested(x):
    with Scale(2), Scale(5) as inner:
        y = torch.sin(x) + nn.functional.relu(x)
    return y + torch.sin(x), inner.by


def replaced(x):
    with Sine() as mode:
        y = x * 2
    return y * 2, mode.entered


def differentiated(x):
    leaf = x.detach().requires_grad_()
    with Scale(2):
        y = (torch.sin(leaf) * leaf).sum()
    y.backward()
    return leaf.grad


def iterated(x):
    with Log() as log:
        y = [row * 2 for row in x], len(x)
    return y, log.calls


def without_grad(x):
    with Log() as log, torch.no_grad():
        y = x + 1
    return y, log.calls


def broken(x):
    y = x + 1
    with Log() as log:
        y = y * 2
        tracer_core.graph_break()
        y = y * 3
    return y, log.calls


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "function", [logged, nested, replaced, differentiated], ids=lambda value: value.__name__
)
def test_modes_inside(function, backend):
    same(function, (X,), (Y,), (X,), graphs=1, backend=backend)


@pytest.mark.parametrize(
    "function", [iterated, without_grad, broken], ids=lambda value: value.__name__
)
def test_modes_that_see_more_than_operators(function):
    """Such a mode is entered for real, and what is inside it runs as in eager."""
    same(function, (X,), (Y,), kinds=("torch_mode",))


# threading.local


def test_attributes_of_a_thread():
    local = threading.local()
    local.scale, local.items = 2, [1]

    def f(x):
        local.items.append(len(local.items))
        return x * local.scale + len(local.items) + getattr(local, "missing", 5)

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        assert torch.equal(compiled(X), X * 2 + 2 + 5)
        local.scale = 3
        assert torch.equal(compiled(X), X * 3 + 3 + 5)
        actual = []

        def other():
            local.scale, local.items, local.missing = 7, [], 0
            actual.append(compiled(X))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert torch.equal(actual[0], X * 7 + 1)
        assert torch.equal(compiled(X), X * 3 + 4 + 5)
    assert not counter.breaks


class Scope(threading.local):
    depth = 0

    def __init__(self):
        self.calls = 0


def test_attributes_of_a_thread_are_set():
    def make():
        scope = Scope()

        def f(x):
            scope.calls += 1
            scope.last = x * scope.calls
            scope.gone = 1
            del scope.gone
            return scope.last + scope.calls

        return f, View(lambda: (scope.calls, scope.last, hasattr(scope, "gone")))

    compare_with_eager(make, (X,), (Y,), (X,), (Y,), breaks=0, recompiles=1)


def test_a_break_between_attributes_of_a_thread():
    def make():
        scope = Scope()

        def f(x):
            scope.inner = {"n": scope.calls}
            tracer_core.graph_break()
            scope.inner["n"] += 1
            del scope.inner
            return x + scope.calls

        return f, View(lambda: vars(scope).copy())

    compare_with_eager(make, (X,), (Y,), breaks=1)
