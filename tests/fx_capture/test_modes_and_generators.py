"""Modes, default devices, generators and seeds, and buffers of modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tracer_core
from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# -- buffers, modes --


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Buffer(torch.ones(4))
        self.register_buffer("none", None)
        self.register_buffer("hidden", torch.ones(4), persistent=False)

    def forward(self, x):
        self.b.add_(1)
        return x + self.b + self.hidden, self.none


def test_buffers():
    def make():
        buffers = Buffers()
        return buffers, buffers

    compare_with_eager(make, (X,), (Y,), (X,), graphs=1, breaks=0)


class Tenfold(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 10 if func is torch.sin else result


class TenfoldBelow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 10 if func is torch.ops.aten.sin.default else result


@pytest.mark.parametrize("mode", [Tenfold, TenfoldBelow])
def test_mode_entered_inside(mode):
    def f(x):
        x = x * 2
        with mode():
            y = torch.sin(x)
        return (y + torch.sin(x)) * 3

    same(f, (X,), (Y,), graphs=1, breaks=0)


@pytest.mark.parametrize("mode", [Tenfold, TenfoldBelow])
def test_mode_around_the_call(mode):
    def f(x):
        return torch.sin(x * 2) + torch.sin(torch.ones(4))

    compiled = tracer_core.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))
        with mode():
            torch.testing.assert_close(compiled(X), f(X))


def test_default_device_set_inside():
    def f(x):
        torch.set_default_device("meta")
        y = torch.ones(3)
        torch.set_default_device(None)
        return y.device, x * 2

    same(f, (X,), (Y,), kinds=("torch_mode",))


def test_generators():
    shared = torch.Generator()

    def f(x):
        g = torch.Generator().manual_seed(3)
        shared.manual_seed(4)
        return (
            x + torch.rand(4, generator=g),
            torch.randint(0, 9, (2,), generator=g),
            torch.rand(2, generator=shared),
        )

    same(f, (X,), (X,), kinds=None)


def test_seed_set_inside():
    def f(x):
        a = torch.rand(4)
        torch.manual_seed(3)
        return x + a, torch.rand(4), F.dropout(x, 0.5)

    same(f, (X,), (Y,), graphs=1)


def test_fork_rng():
    def f(x):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            a = torch.rand(3)
        return a + x[0, :3], torch.rand(2)

    same(f, (X,), (Y,), kinds=None)


SAMPLES = {
    "rand": lambda x, g: torch.rand(x.shape, generator=g),
    "randn": lambda x, g: torch.randn(x.shape[0], 5, generator=g, dtype=torch.float64),
    "randint": lambda x, g: torch.randint(9, x.shape, generator=g),
    "randint of a range": lambda x, g: torch.randint(-3, 9, (x.shape[0],), generator=g),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_a_generator_for_sizes_that_change(name):
    def make():
        generator = torch.Generator()
        generator.manual_seed(5)
        return lambda x: (SAMPLES[name](x, generator), x + 1)

    steps = [(torch.ones(n, 4),) for n in (3, 4, 7, 9, 4)]
    compare_with_eager(make, *steps, graphs=2, breaks=0)
