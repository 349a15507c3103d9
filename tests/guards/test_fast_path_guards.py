"""The cheap second check: namespaces that keep changing, and changes hidden among them."""

from __future__ import annotations

import collections
import sys
import types

import pytest
import torch

import tracer_core
from tracer_core import markers
from tracer_core.guards import fast_path_guard
from tracer_core.guards.object_layout import layout

with_a_fast_path = pytest.mark.skipif(layout() is None, reason="guards have no fast path here")

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
    return record.entry_function.__globals__["guard_cache"]


@with_a_fast_path
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


@with_a_fast_path
def test_a_training_step_checks_which_tensors_share_memory_without_the_full_check():
    """Batch norm writes to its statistics, so the entry checks that no input lies in their memory:
    the set of addresses to compare with must live as long as the fast-path guard."""
    net, full_checks = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), 0
    fast, x = tracer_core.compile(net.train(), backend="eager"), torch.randn(3, 4)
    fast(x)
    stamps = stamps_of(fast)
    original = stamps._check

    def counted(state):
        nonlocal full_checks
        full_checks += 1
        return original(state)

    stamps._check = counted
    for _ in range(20):
        fast(x)
    assert full_checks <= 2
    reference_net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train()
    reference_net.load_state_dict(net.state_dict())
    statistics = net[1].running_mean.expand(3, 4)  # an input that lies in the memory written to
    torch.testing.assert_close(
        fast(statistics), reference_net(reference_net[1].running_mean.expand(3, 4))
    )


class Keys:
    """A cache of keys, as in generation: each step puts a longer tensor in its place."""

    def __init__(self):
        self.keys, self.limit = torch.zeros(2, 1), 100

    def update(self, x):
        if self.keys.shape[1] < self.limit:
            self.keys = torch.cat([self.keys, x], dim=1)
        return self.keys.sum()


class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)])

    def forward(self, x, cache):
        for layer in self.layers:
            x = layer(x)
        return x * cache.update(x)


@with_a_fast_path
def test_tensors_that_each_call_replaces_do_not_bring_the_full_check_back():
    net, x = Attends(), torch.randn(2, 3)
    fast = tracer_core.compile(net, backend="eager", dynamic=True)
    full_checks = 0
    with torch.no_grad():
        for _ in range(2):  # until the sizes are symbols
            cache, other = Keys(), Keys()
            for _ in range(4):
                torch.testing.assert_close(fast(x, cache), net.forward(x, other))
        for record in markers.compiled(fast).function.records:
            stamps = record.entry_function.__globals__["guard_cache"]

            def counted(state, original=stamps._check):
                nonlocal full_checks
                full_checks += 1
                return original(state)

            stamps._check = counted
        cache, other = Keys(), Keys()
        for _ in range(20):
            torch.testing.assert_close(fast(x, cache), net.forward(x, other))
        assert full_checks <= 6
        cache.limit = other.limit = 5  # beside the tensors that are replaced
        torch.testing.assert_close(fast(x, cache), net.forward(x, other))
        cache.keys = other.keys = torch.ones(2, 2, dtype=torch.float64)
        torch.testing.assert_close(fast(x, cache), net.forward(x, other))


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


# -- numbers that change, and objects made anew for each call
# ----------------------------------------------


@pytest.fixture
def fast_guards(monkeypatch):
    """The stamps that are made."""
    actual = []

    class Counted(fast_path_guard.FastPathGuard):
        def __init__(self, *args):
            actual.append(self)
            super().__init__(*args)

    monkeypatch.setattr(fast_path_guard, "FastPathGuard", Counted)
    return actual


class Held:
    size = 0

    def __init__(self, size=0):
        self.size, self.sizes, self.by = size, [size, 2], {"size": size}


#: name -> (program, what changes in the object).
CHANGES = {
    "attribute": (lambda x, held: x * held.size, lambda held, n: setattr(held, "size", n)),
    "list": (lambda x, held: x * held.sizes[0], lambda held, n: held.sizes.__setitem__(0, n)),
    "dict": (lambda x, held: x * held.by["size"], lambda held, n: held.by.__setitem__("size", n)),
    "class": (lambda x, held: x * Held.size, lambda held, n: setattr(Held, "size", n)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_number_that_changes_breaks_no_stamp(name, fast_guards):
    program, change = CHANGES[name]
    fast, held, x = tracer_core.compile(program, backend="eager"), Held(), torch.ones(2)
    for n in range(5, 60):
        change(held, n)
        assert torch.equal(fast(x, held), program(x, held))
    assert len(fast_guards) < 10


@with_a_fast_path
def test_objects_made_for_each_call_are_checked_without_a_stamp(fast_guards):
    fast, x = tracer_core.compile(lambda x, held: x * held.size, backend="eager"), torch.ones(2)
    for n in range(5, 500):
        assert torch.equal(fast(x, Held(n)), x * n)
    assert len(fast_guards) < 50
    fast_guards.clear()
    kept = Held(3)
    for n in range(5, 500):
        kept.size = n
        assert torch.equal(fast(x, kept), x * n)
    assert 1 <= len(fast_guards) < 10, "one that lives gets a stamp"


def test_a_change_is_seen_where_stamps_are_seldom_made():
    class Scale:
        by = "two"

    fast, x = tracer_core.compile(lambda x, item: x * len(item.by), backend="eager"), torch.ones(2)
    for n in range(300):
        scale = Scale()
        if n % 7 == 3:
            scale.by = "three"
        if n == 200:
            Scale.by = "eleven"
        assert torch.equal(fast(x, scale), x * len(scale.by))
