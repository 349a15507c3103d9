"""The cheap second check: namespaces that keep changing, and changes hidden among them."""

from __future__ import annotations

import collections
import sys
import types

import pytest
import torch

import tracer_core
from tracer_core import markers

PROGRAM = """
import torch
SCALE = 2.0

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)) * SCALE
        return x
"""


@pytest.fixture
def script(monkeypatch):
    """A module like a user's script: its globals change on every turn of a loop."""
    module = types.ModuleType("a_script")
    monkeypatch.setitem(sys.modules, "a_script", module)
    exec(PROGRAM, module.__dict__)
    return module


def stamps_of(compiled):
    (record,) = markers.compiled(compiled).function.records
    return record.attempt.__globals__["stamps"]


def test_globals_that_change_every_turn_do_not_bring_the_full_check_back(script):
    net, x = script.Net(), torch.randn(2, 4)
    fast = tracer_core.compile(net, backend="eager")
    full_checks = 0

    def counted(state, original):
        nonlocal full_checks
        full_checks += 1
        return original(state)

    with torch.no_grad():
        fast(x)
        stamps = stamps_of(fast)
        original = stamps._check
        stamps._check = lambda state: counted(state, original)
        for turn in range(50):
            script.turn, script.result = turn, fast(x)
    assert full_checks <= 3


@pytest.mark.parametrize("turns", [0, 1, 10])
def test_a_global_that_matters_is_seen_among_those_that_do_not(script, turns):
    net, x = script.Net(), torch.randn(2, 4)
    fast = tracer_core.compile(net, backend="eager")
    with torch.no_grad():
        for turn in range(turns):
            script.turn, script.result = turn, fast(x)
        torch.testing.assert_close(fast(x), net(x))
        script.SCALE = 3.0
        torch.testing.assert_close(fast(x), net(x))
        net.layers[1].weight = torch.nn.Parameter(torch.zeros(4, 4))
        torch.testing.assert_close(fast(x), net(x))
        net.layers.append(torch.nn.Linear(4, 4))
        torch.testing.assert_close(fast(x), net(x))


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_the_order_of_a_dictionary_that_changes_often(kind):
    table = kind(a=1.0, b=2.0)
    fast = tracer_core.compile(lambda x: [x * k for k in table.values()], backend="eager")
    x = torch.ones(2)
    for _ in range(6):  # its version moves, and its entries are the same again
        fast(x)
        table["other"] = 1
        del table["other"]
    assert [float(y[0]) for y in fast(x)] == [1.0, 2.0]
    table["a"] = table.pop("a")
    assert [float(y[0]) for y in fast(x)] == [2.0, 1.0]
