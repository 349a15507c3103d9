"""One case a fact about globals, builtins, modules and the environment that a trace relies on."""

from __future__ import annotations

import builtins
import math
import os
import sys
import types

import pytest
import torch

import tracer_core
from tests.support.eager_reference import module
from tests.support.guard_facts import Facts, check

fact = Facts()


# -- globals, builtins, modules --


@fact("global: value", reason="SCALE")
def _():
    m = module("SCALE = 2\ndef f(x):\n    return x * SCALE\n")
    return m.f, lambda: setattr(m, "SCALE", 3)


@fact("global: deleted")
def _():
    m = module("SCALE = 2\ndef f(x):\n    return x * SCALE\n")
    return m.f, lambda: delattr(m, "SCALE")


@fact("global: function replaced", reason="g")
def _():
    m = module("def g(x):\n    return x + 1\ndef f(x):\n    return g(x)\n")
    return m.f, lambda: setattr(m, "g", lambda x: x - 1)


@fact("global shadows a builtin", reason="len")
def _():
    m = module("def f(x):\n    return x * len([1, 2])\n")
    return m.f, lambda: setattr(m, "len", lambda items: 7)


@fact("global shadows a builtin in a nested call", reason="max")
def _():
    m = module("def g(x):\n    return max(1, 2)\ndef f(x):\n    return x * g(x)\n")
    return m.f, lambda: setattr(m, "max", lambda *a: 7)


@fact("builtin replaced", breaks=None)
def _():
    m = module("def f(x):\n    return x * pow(2, 3)\n")
    original = pow
    return (
        m.f,
        (lambda: setattr(builtins, "pow", lambda a, b: original(a, b) + 1)),
        (lambda: setattr(builtins, "pow", original)),
    )


@fact("builtin added", reason="tracer_added")
def _():
    m = module(
        "def f(x):\n    try:\n        return x * tracer_added\n    except NameError:\n        return x\n"
    )
    return (
        m.f,
        lambda: setattr(builtins, "tracer_added", 3),
        lambda: delattr(builtins, "tracer_added"),
    )


@fact("module: attribute", reason="k")
def _():
    m = module("k = 2\n")
    return (lambda x: x * m.k), lambda: setattr(m, "k", 3)


@fact("module: what its __getattr__ returns", reason="VALUES")
def _():
    m = module(
        "VALUES = {'k': 2}\ndef __getattr__(name):\n    if name in VALUES:\n"
        "        return VALUES[name]\n    raise AttributeError(name)\n"
    )
    return (lambda x: x * m.k), lambda: m.VALUES.update(k=3)


@fact("module: its __getattr__ is set", reason="__getattr__")
def _():
    m = module("")
    return (
        lambda x: x * getattr(m, "k", 2),
        lambda: setattr(m, "__getattr__", lambda name: 3),
        lambda: sys.modules.pop(m.__name__),  # inspect would read its __file__
    )


@fact("torch.Tensor: what a property of the program reads", reason="SCALE")
def _():
    m = module("SCALE = 2\nscaled = property(lambda x: x * SCALE)\n")
    torch.Tensor.test_scaled = m.scaled
    return (
        lambda x: x.test_scaled,
        lambda: setattr(m, "SCALE", 3),
        lambda: delattr(torch.Tensor, "test_scaled"),
    )


@fact("module: torch's function replaced", reason="relu")
def _():
    original = torch.relu
    return (
        (lambda x: torch.relu(x)),
        (lambda: setattr(torch, "relu", lambda x: x * 5)),
        (lambda: setattr(torch, "relu", original)),
    )


@fact("module: function of torch.nn.functional replaced", reason="relu")
def _():
    original = torch.nn.functional.relu
    return (
        (lambda x: torch.nn.functional.relu(x)),
        (lambda: setattr(torch.nn.functional, "relu", lambda x, inplace=False: x * 5)),
        (lambda: setattr(torch.nn.functional, "relu", original)),
    )


@fact("module: function of torch.nn.functional replaced, used by a module", reason="relu")
def _():
    original = torch.nn.functional.relu
    net = torch.nn.ReLU()
    return (
        (lambda x: net(x)),
        (lambda: setattr(torch.nn.functional, "relu", lambda x, inplace=False: x * 5)),
        (lambda: setattr(torch.nn.functional, "relu", original)),
    )


@fact("module: function of math replaced", reason="sqrt")
def _():
    original = math.sqrt
    return (
        (lambda x: x * math.sqrt(4.0)),
        (lambda: setattr(math, "sqrt", lambda v: 7.0)),
        (lambda: setattr(math, "sqrt", original)),
    )


@fact("sys.modules: entry replaced, seen by an import in the function")
def _():
    sys.modules["tracer_swapped"] = item = types.ModuleType("tracer_swapped")
    item.k = 2
    two = types.ModuleType("tracer_swapped")
    two.k = 3

    def program(x):
        import tracer_swapped

        return x * tracer_swapped.k

    return (
        program,
        (lambda: sys.modules.update(tracer_swapped=two)),
        (lambda: sys.modules.pop("tracer_swapped")),
    )


@fact("sys.modules: the module of the compiled function replaced")
def _():
    m = module("SCALE = 2\nN = [0]\ndef f(x):\n    return x * SCALE + N[0]\n")
    other = types.ModuleType(m.__name__)
    other.__dict__.update(torch=torch, SCALE=5, N=[1], f=m.f)

    def change():
        sys.modules[m.__name__] = other
        m.SCALE = 3

    return m.f, change, lambda: sys.modules.pop(m.__name__)


@fact("environment variable")
def _():
    os.environ["TRACER_TEST_FACT"] = "2"
    return (
        (lambda x: x * int(os.environ["TRACER_TEST_FACT"])),
        (lambda: os.environ.update(TRACER_TEST_FACT="3")),
        (lambda: os.environ.pop("TRACER_TEST_FACT")),
    )


@fact("environment variable through os.getenv")
def _():
    os.environ["TRACER_TEST_FACT"] = "2"
    return (
        (lambda x: x * int(os.getenv("TRACER_TEST_FACT", "9"))),
        (lambda: os.environ.pop("TRACER_TEST_FACT")),
        (lambda: os.environ.pop("TRACER_TEST_FACT", None)),
    )


@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))
