"""A model that is called with a new object each time (a cache of keys and values for each text): the
guards on the model are another part than those on the object, under a fast-path guard of their own.
Objects that a dictionary or a closure cell of the state leads to have parts, too.
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
from tracer_core.guards.fast_path_guard import GuardCache
from tracer_core.guards.object_layout import layout

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
        value
        for record in markers.compiled(fast).function.records
        for value in record.entry_function.__globals__.values()
        if type(value) is GuardCache
    ]


def _counting(guards):
    """Returns a list to which each full check from now on adds the name of its function."""
    checked = []
    for cache in guards:

        def counted(state, original=cache._check):
            checked.append(original.__name__)
            return original(state)

        cache._check = counted
    return checked


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


def test_a_new_cache_does_not_bring_the_check_of_the_model_back(script):
    net, fast, caches = _settled(script)
    checked = _counting(_guards_of(fast))
    for _ in range(5):
        new = [(script.Cache(), script.Cache())]
        for _ in range(4):
            _same(net, fast, new)
    assert checked and not any(name == "check" for name in checked), checked  # of the largest part


def test_a_cache_that_writes_its_own_attributes_is_checked_once_or_twice(script):
    """The dictionary that the entry itself changes is compared by its entries from the start."""
    net, fast, caches = _settled(script)
    checked = _counting(_guards_of(fast))
    new = [(script.Cache(), script.Cache())]
    for _ in range(20):
        _same(net, fast, new)
    assert len(checked) <= 4, checked


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


GENERATES = """
import torch

class Layer:
    def __init__(self):
        self.keys, self.scale, self.hook = torch.zeros(1, 16, 4), 2.0, None

class Cache:
    def __init__(self, n):
        self.layers = [Layer() for _ in range(n)]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linears = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(6)])
    def forward(self, x, position, cache):
        for linear, layer in zip(self.linears, cache.layers):
            layer.keys[:, position : position + 1] = x
            x = torch.tanh(linear(x) + layer.keys.mean(1, keepdim=True)) * layer.scale
            if layer.hook is not None:
                x = layer.hook(x)
        return x

def generate(net, x, between, **arguments):
    steps, written = 0, 0
    ask = lambda: arguments["between"](arguments, steps)
    arguments["between"] = between
    while steps < 12:
        x = net(x, steps, arguments["cache"])
        written = written * 1.5 + x  # what a step gets wrong stays
        ask()
        steps += 1
        if bool(x.sum() > 1e6):
            break
    return written
"""


@pytest.fixture
def generates(monkeypatch):
    module = types.ModuleType("it_generates")
    monkeypatch.setitem(sys.modules, "it_generates", module)
    exec(GENERATES, module.__dict__)
    return module


def _nothing(arguments, step):
    pass


def _texts(module, change=_nothing):
    """Generates texts in eager mode and compiled, and compares them. change(arguments, step): what the
    program does between the steps of the later texts."""
    torch.manual_seed(0)
    net, x = module.Net().eval(), torch.randn(1, 1, 4)
    fast = tracer_core.compile(module.generate, backend="eager")
    does = [_nothing]
    between = tracer_core.disable(lambda arguments, step: does[0](arguments, step))
    call = lambda cache: fast(net, x, between, cache=cache)
    with torch.no_grad():
        for text in range(6):
            does[0] = change if text > 3 else _nothing  # when the fast paths are there
            expected = module.generate(net, x, between, cache=module.Cache(6))
            torch.testing.assert_close(call(module.Cache(6)), expected)
    return fast, call


def test_a_cache_in_a_dictionary_is_under_a_fast_path_guard(generates):
    fast, call = _texts(generates)
    checked = _counting(_guards_of(fast))
    with torch.no_grad():
        call(generates.Cache(6))
    assert 0 < len(checked) < 12, checked  # twelve steps: not in each of them


def _scaled(arguments, step):
    arguments["cache"].layers[3].scale = 1.0 + step % 3


def _hooked(arguments, step):
    arguments["cache"].layers[2].hook = torch.neg if step == 7 else None


def _other_tensor(arguments, step):
    if step in (6, 9):
        arguments["cache"].layers[1].keys = torch.full((1, 16, 4), 0.25 * step)


def _larger_tensor(arguments, step):
    if step == 8:
        arguments["cache"].layers[4].keys = torch.full((1, 20, 4), 0.5)


def _shared_memory(arguments, step):
    if step == 7:
        layers = arguments["cache"].layers
        layers[0].keys = layers[5].keys


def _other_layer(arguments, step):
    if step == 6:
        layers = arguments["cache"].layers
        layers[0], layers[1] = layers[1], layers[0]


def _other_cache(arguments, step):
    if step == 5:
        arguments["cache"] = type(arguments["cache"])(6)


def _fewer_layers(arguments, step):
    if step == 9:
        del arguments["cache"].layers[-1]


@pytest.mark.parametrize(
    "between",
    [_scaled, _hooked, _other_tensor, _larger_tensor, _shared_memory, _other_layer, _other_cache,
     _fewer_layers],
)  # fmt: skip
def test_what_changes_between_the_halves_of_a_loop_is_seen(generates, between):
    """Code behind a graph break changes what the next step's guards have found unchanged before."""
    _texts(generates, between)


def test_a_cache_in_a_dictionary_dies_with_the_last_reference(generates):
    _, call = _texts(generates)
    cache = generates.Cache(6)
    gone, layer = weakref.ref(cache), weakref.ref(cache.layers[2])
    with torch.no_grad():
        call(cache)
    del cache
    gc.collect()
    assert gone() is None and layer() is None
