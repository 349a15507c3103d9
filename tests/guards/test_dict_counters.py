"""Changes of dictionaries without version tags: guards see each change, and let go of what dies."""

from __future__ import annotations

import collections
import gc
import random
import subprocess
import sys
import types
import weakref

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.guards.dict_counters import can_count, count_changes
from tracer_core.guards.object_layout import word

X = torch.arange(6.0).view(2, 3)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor, self.settings = 2.0, {"shift": 1.0}

    def forward(self, x):
        return x * self.factor + self.settings.get("shift", 5.0) + vars(self).get("late", 0.0)


class Slotless:
    def __init__(self):
        self.factor, self.settings, self.late = 2.0, {"shift": 1.0}, 0.0

    def forward(self, x):
        return x * self.factor + self.settings.get("shift", 5.0) + self.late


def stored_in_a_loop(owner):
    """CPython specializes a store that runs often."""
    for step in range(200):
        owner.factor = float(step)


def deleted_and_set(owner):
    settings = owner.settings
    del settings["shift"]
    settings["shift"] = 9.0


def updated(owner):
    owner.settings.update(shift=7.0)


def replaced(owner):
    owner.settings = {"shift": -1.0}


def own_dictionary_replaced(owner):
    owner.__dict__ = {**vars(owner), "factor": 11.0}


def stored_below(owner):
    object.__setattr__(owner, "factor", 13.0)


def written_through_vars(owner):
    vars(owner)["factor"] = 17.0


def written_through_an_old_dictionary(owner):
    """The dictionary that was the object's own until just now is nobody's."""
    old = vars(owner)
    owner.__dict__ = dict(old)
    old["factor"] = 19.0
    owner.late = 2.0


def cleared(owner):
    owner.settings.clear()


def popped(owner):
    owner.settings.popitem()


def added(owner):
    vars(owner)["late"] = 3.0


CHANGES = [stored_in_a_loop, deleted_and_set, updated, replaced, own_dictionary_replaced,
           stored_below, written_through_vars, written_through_an_old_dictionary, cleared, popped,
           added]  # fmt: skip


@pytest.mark.parametrize("form", ["native", "python"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", [Scaled, Slotless])
def test_each_change_is_seen(kind, change, form, monkeypatch):
    monkeypatch.setenv("TRACER_PYTHON_GUARDS", str(int(form == "python")))
    owner = kind()
    fast = tracer_core.compile(owner.forward, backend="eager")
    for _ in range(4):
        assert torch.equal(fast(X), owner.forward(X))
    change(owner)
    for _ in range(3):
        assert torch.equal(fast(X), owner.forward(X))


def test_attributes_of_a_class_and_globals_of_a_module():
    module = types.ModuleType("settings")
    exec("FACTOR = 2.0\nclass Shift:\n    by = 1.0\n"
         "def forward(x):\n    return x * FACTOR + Shift.by\n", vars(module))  # fmt: skip
    fast = tracer_core.compile(module.forward, backend="eager")
    for step in range(5):
        for _ in range(3):
            assert torch.equal(fast(X), module.forward(X))
        if step % 2:
            module.FACTOR += 1.0
        else:
            module.Shift.by += 1.0


def test_an_emptied_container_is_empty_again():
    net = nn.Linear(3, 3)
    fast = tracer_core.compile(net, backend="eager")
    with torch.no_grad():
        for _ in range(6):
            assert torch.equal(fast(X), net(X))
            handle = net.register_forward_hook(lambda module, inputs, output: output + 1)
            assert torch.equal(fast(X), net(X))
            handle.remove()


def test_guards_let_go_of_dictionaries():
    owner = Scaled()
    fast = tracer_core.compile(owner, backend="eager")
    fast(X), fast(X)
    kept = weakref.ref(owner)
    del owner, fast
    gc.collect()
    assert kept() is None


needs_counters = pytest.mark.skipif(
    not can_count(), reason="counters are read on CPython 3.13 and later, with a C compiler"
)


@needs_counters
def test_counters_of_many_dictionaries():
    """Dictionaries are changed, counted again, let go and die, in any order."""
    chosen = random.Random(0)
    alive: dict[int, dict] = {}
    held: list = []  # (counters, name of the dictionary of each, counts)
    for name in range(1000):
        alive[name] = {"a": 0}
        names = [name, *chosen.sample([*alive], min(3, len(alive)))]
        counters = count_changes([alive[name] for name in names])
        held.append((counters, names, [word(at) for at in counters.addresses]))
        for _ in range(3):
            action = chosen.random()
            if action < 0.5:
                changed = chosen.choice([*alive][-40:])
                alive[changed]["a"] += 1
            elif action < 0.8 and len(alive) > 20:
                changed = chosen.choice([*alive])
                del alive[changed]
            else:
                if held:
                    held.pop(chosen.randrange(len(held)))
                continue
            for counters, names, before in held[-60:]:
                for at, value in enumerate(names):
                    now = word(counters.addresses[at])
                    assert now - before[at] == (value == changed)
                    before[at] = now
            for counters, names, before in held[:-60]:
                before[:] = [word(at) for at in counters.addresses]
            if len(held) > 400:
                held.pop(0)
    for counters, names, _ in held:
        for address, item in zip(counters.addresses, names, strict=True):
            if item in alive:
                before = word(address)
                alive[item]["b"] = len(alive[item]) + before
                assert word(address) == before + 1


@needs_counters
def test_a_dictionary_that_nobody_counts_is_not_watched():
    held = {"a": 1}
    item, other = count_changes([held]), count_changes([held, {}])
    assert item.addresses[0] == other.addresses[0]
    address = item.addresses[0]
    held["a"] = 2
    assert word(address) == 1
    del item
    held["a"] = 3
    assert word(address) == 2
    del other
    again = count_changes([held])
    held["a"] = 4
    assert word(again.addresses[0]) == 1


@needs_counters
@pytest.mark.parametrize("make", [dict, collections.OrderedDict, collections.Counter])
def test_equal_values_are_no_change_and_copies_are_not_watched(make):
    value = object()
    held = make({"a": value})
    counters = count_changes([held])
    address = counters.addresses[0]
    held["a"] = value
    held.get("b"), list(held), len(held), "c" in held
    copied = held.copy()
    copied["a"] = 2
    assert word(address) == 0
    held["a"] = 2
    assert word(address) == 1


_ALL_TAKEN = """
import ctypes, torch, tracer_core
from tracer_core.guards.dict_counters import can_count
watcher = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
ignore = watcher(lambda *event: 0)
try:
    while True:
        ctypes.pythonapi.PyDict_AddWatcher(ignore)
except RuntimeError:
    pass
factor = 2.0
def forward(x):
    return x * factor
fast = tracer_core.compile(forward, backend="eager")
x = torch.ones(3)
for factor in (2.0, 2.0, 3.0, 3.0, 4.0, 5.0):
    assert torch.equal(fast(x), forward(x))
assert not can_count()
"""


@needs_counters
def test_other_libraries_have_all_watchers():
    subprocess.run([sys.executable, "-c", _ALL_TAKEN], check=True)
