"""A model that is called with a new object each time (a cache of keys and values for each text): the
fast-path guards of all these objects share the words that tell whether the model has changed.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref

import pytest
import torch

import tracer_core
from tracer_core import markers
from tracer_core.guards.fast_path_guard import SharedFields
from tracer_core.guards.object_layout import layout
from tracer_core.guards.watched_fields import Checked, identities

pytestmark = pytest.mark.skipif(layout() is None, reason="guards have no fast path here")

PROGRAM = """
import collections
import torch
SCALE = 2.0

class Cache:
    def __init__(self):
        self.rows, self.length, self.tag = None, 0, "new"

class Layer(torch.nn.Module):
    shift = 1.0
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.dropout = torch.nn.Dropout(1.0)
        self.config = {"power": 1}
        self.order = collections.OrderedDict(a=2.0, b=3.0)
        self.steps = [1.0, 2.0]
    def helper(self, x):
        return x + self.shift
    def forward(self, x):
        x = self.helper(self.linear(x)) ** self.config["power"]
        for name, value in self.order.items():
            x = x * value if name == "a" else x + value
        return self.dropout(x) * 0.1 + self.steps[0] * x

class Other(Layer):
    def helper(self, x):
        return x - 5

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer() for _ in range(6)])
    def forward(self, x, cache):
        for layer in self.layers:
            x = torch.tanh(layer(x) * SCALE)
        cache.rows = x if cache.rows is None else cache.rows + x
        cache.length += 1
        return x + cache.rows
"""


@pytest.fixture
def script(monkeypatch):
    """A module like a user's script."""
    module = types.ModuleType("a_script_of_caches")
    monkeypatch.setitem(sys.modules, "a_script_of_caches", module)
    exec(PROGRAM, module.__dict__)
    return module


def _call(function, cache):
    with torch.no_grad():
        return function(torch.ones(2, 4), cache)


def _same(net, fast, caches):
    for cache, reference in caches:
        torch.testing.assert_close(_call(fast, cache), _call(net, reference))
        torch.testing.assert_close(cache.rows, reference.rows)
        assert cache.length == reference.length


def _settled(script, calls=4):
    """Returns a model, its compiled form, and two pairs of caches whose guards are made."""
    net = script.Net().eval()
    fast = tracer_core.compile(net, backend="eager")
    for _ in range(4):
        caches = [(script.Cache(), script.Cache()) for _ in range(2)]
        for _ in range(calls):
            _same(net, fast, caches)
    return net, fast, caches


def _guards_of(fast):
    return [
        record.entry_function.__globals__["guard_cache"]
        for record in markers.compiled(fast).function.records
    ]


def _replaced(net, script):
    net.layers[3] = script.Other().eval()


def _parameter(net, script):
    net.layers[2].linear.weight = torch.nn.Parameter(torch.full((4, 4), 0.3))


def _other_class(net, script):
    net.layers[5].__class__ = script.Other


def _method_of_an_object(net, script):
    net.layers[4].helper = lambda x: x * 7


def _method_of_the_class(net, script):
    script.Layer.helper = lambda self, x: x * 0.5


def _method_of_torch(net, script, monkeypatch):
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x @ self.weight)


def _hook(net, script):
    net.layers[0].register_forward_hook(lambda module, args, result: result + 1)


def _order(net, script):
    net.layers[1].order.move_to_end("a")


def _base(net, script):
    class Mixin:
        shift = 9.0

    script.Layer.__bases__ = (Mixin, *script.Layer.__bases__)
    del script.Layer.shift


#: name -> what changes the model, or what it reads.
CHANGES = {
    "a global": lambda net, script: setattr(script, "SCALE", -1.0),
    "an attribute of the class": lambda net, script: setattr(script.Layer, "shift", 4.0),
    "an attribute of one object": lambda net, script: setattr(net.layers[1], "shift", 4.0),
    "training": lambda net, script: net.layers[2].dropout.train(),
    "an entry of a dictionary": lambda net, script: net.layers[4].config.update(power=3),
    "a dictionary": lambda net, script: setattr(net.layers[4], "config", {"power": 2}),
    "an item of a list": lambda net, script: net.layers[5].steps.__setitem__(0, 5.0),
    "a child": _replaced,
    "one child less": lambda net, script: net.layers.__delitem__(5),
    "one more": lambda net, script: net.layers.append(script.Layer().eval()),
    "a parameter": _parameter,
    "a parameter gone": lambda net, script: setattr(net.layers[1].linear, "bias", None),
    "the class of an object": _other_class,
    "a method of an object": _method_of_an_object,
    "a method of the class": _method_of_the_class,
    "a hook": _hook,
    "an order": _order,
    "a base of the class": _base,
}


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_is_seen_with_old_and_new_caches(script, name):
    net, fast, caches = _settled(script)
    CHANGES[name](net, script)
    new = [(script.Cache(), script.Cache()) for _ in range(2)]
    for pairs in (caches, new, [*new, *caches]):
        for _ in range(3):
            _same(net, fast, pairs)


def test_a_change_of_torchs_own_method_is_seen(script, monkeypatch):
    net, fast, caches = _settled(script)
    _method_of_torch(net, script, monkeypatch)
    for _ in range(3):
        _same(net, fast, [*caches, (script.Cache(), script.Cache())])


def test_a_change_of_the_cache_is_seen(script):
    net, fast, caches = _settled(script)
    for cache, reference in caches:
        cache.rows, reference.rows = torch.ones(2, 4), torch.ones(2, 4)
        cache.length = reference.length = 40
    for _ in range(3):
        _same(net, fast, caches)
    for pair in caches:
        for cache in pair:
            cache.rows = None
    for _ in range(3):
        _same(net, fast, caches)


def test_words_are_shared(script):
    net, fast, caches = _settled(script)
    shared = [guards._shared for guards in _guards_of(fast)]
    used = [item for item in shared if item is not None and item.holds()]
    assert used
    ours = sum(map(len, used[0].fields.depths))
    assert ours > SharedFields.LEAST
    (guard, *_) = (g for c in _guards_of(fast) for g in c._fast_paths.values() if g._shared in used)
    assert sum(map(len, guard._fields.depths)) < ours


def test_a_cache_that_writes_its_own_attributes_is_checked_once_or_twice(script):
    """The dictionary that the entry itself changes is compared by its entries from the start."""
    net, fast, caches = _settled(script)
    for guards in _guards_of(fast):
        guards.checks, original = 0, guards._check

        def counted(state, guards=guards, original=original):
            guards.checks += 1
            return original(state)

        guards._check = counted
    new = [(script.Cache(), script.Cache())]
    for _ in range(20):
        _same(net, fast, new)
    assert sum(guards.checks for guards in _guards_of(fast)) <= 4


def test_nothing_is_kept_alive(script):
    net, fast, caches = _settled(script)
    layer = weakref.ref(net.layers[5])
    steps = collections.UserList([1.0])
    net.layers[4].note = steps
    note = weakref.ref(steps)
    cache = weakref.ref(caches[0][0])
    del net.layers[5], net.layers[4].note, steps, caches
    gc.collect()
    assert layer() is None and note() is None and cache() is None
    for _ in range(3):
        _same(net, fast, [(script.Cache(), script.Cache())])


def test_a_model_for_another_at_the_same_place(script):
    """Models that come and go, one after the other, with one function."""

    def run(net, cache):
        with torch.no_grad():
            return net(torch.ones(2, 4), cache)

    fast = tracer_core.compile(run, backend="eager")
    for turn in range(6):
        net = script.Net().eval()
        net.layers[0].shift = float(turn % 2)
        for _ in range(3):
            cache, reference = script.Cache(), script.Cache()
            for _ in range(3):
                torch.testing.assert_close(fast(net, cache), run(net, reference))
        del net
        gc.collect()


@pytest.mark.parametrize("changed", range(2))
def test_two_models_in_turns(script, changed):
    def run(net, cache):
        with torch.no_grad():
            return net(torch.ones(2, 4), cache)

    fast = tracer_core.compile(run, backend="eager")
    nets = [script.Net().eval() for _ in range(2)]

    def turn():
        for net in nets:
            cache, reference = script.Cache(), script.Cache()
            for _ in range(4):
                torch.testing.assert_close(fast(net, cache), run(net, reference))
            made.append((net, cache, reference))

    made = []
    for _ in range(4):
        turn()
    nets[changed].layers[5].shift = 30.0
    nets[changed].layers[2].config["power"] = 2
    for net, cache, reference in made:
        torch.testing.assert_close(fast(net, cache), run(net, reference))
    turn()


def test_words_end_with_the_first_object_that_dies():
    class Thing:
        def __init__(self):
            self.value = 1

    things = [Thing() for _ in range(3)]
    checked = Checked(
        holders=[(thing, thing.__dict__) for thing in things],
        dicts=[(thing.__dict__, ("value",)) for thing in things],
        objects=[*things, 5],
    )
    known = identities(checked)
    alike = {name: [True] * len(items) for name, items in known.items()}
    shared = SharedFields(layout(), checked, known, alike, frozenset())
    assert shared.holds() and shared.serves(known)
    assert shared.others["objects"] == [False, False, False, True]
    del checked
    gone = weakref.ref(things.pop())
    gc.collect()
    assert gone() is None and shared._ended and not shared.holds() and not shared.serves(known)
