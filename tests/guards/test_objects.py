"""Many objects share one compiled function: each has its own variants and its own limit."""

from __future__ import annotations

import gc
import typing
import weakref

import pytest
import torch

import tracer_core
from tests.support.guard_facts import Box
from tests.support.recompile_limits import reported_limits
from tracer_core import markers
from tracer_core.execution.entry import guarded_cache
from tracer_core.testing import CaptureCounter, compare

X = torch.randn(2, 4)


class Layer(torch.nn.Module):
    def __init__(self, index, width=4):
        super().__init__()
        self.index = index
        self.linear = torch.nn.Linear(4, width)

    @tracer_core.compile(backend="eager", dynamic=False)
    def forward(self, x):
        return self.linear(x) + self.index


def eager(layer, x):
    return layer.linear(x) + layer.index


def regions_of(fn):
    return list(markers.compiled(fn).function.runtime.regions.starts.values())


@pytest.fixture
def no_warnings():
    with reported_limits(count=0):
        yield


@pytest.mark.parametrize("count", [12, 40])
def test_instances_do_not_use_up_one_anothers_limit(count, no_warnings):
    layers = [Layer(i) for i in range(count)]
    with CaptureCounter() as counter:
        for _ in range(3):
            for layer in layers:
                compare(eager(layer, X), layer(X))
    assert len(counter.graphs) == count and not counter.breaks


def test_a_method_of_a_thousand_plain_objects(no_warnings):
    class Scale:
        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return x * self.k

    result = [Scale(float(i)) for i in range(1000)]
    fast = tracer_core.compile(Scale.__call__, backend="eager", dynamic=False)
    with CaptureCounter() as counter:
        for _ in range(8):  # each captures a few: nobody knows in the first that they come again
            for value in result[:200]:
                compare(value(X), fast(value, X))
        tries = counting_tries(fast)
        for item in result[:200]:
            compare(item(X), fast(item, X))
    assert len(counter.graphs) == 200
    assert tries() == 200, "each object's own variant is the first that is tried"


def counting_tries(fn):
    """Counts the variants that are tried from now on."""
    count = [0]
    (region,) = regions_of(fn)

    def counted(attempt):
        def run(state):
            count[0] += 1
            return attempt(state)

        return run

    for root in region._roots.values():
        root.entries[:] = map(counted, root.entries)
        root.hot = None  # the entries are looked through again
    return lambda: count[0]


def test_instances_that_differ_in_nothing_share_a_variant(no_warnings):
    layers = [Layer(7) for _ in range(30)]
    with CaptureCounter() as counter:
        for _ in range(2):
            for layer in layers:
                compare(eager(layer, X), layer(X))
    assert len(counter.graphs) == 1 and not counter.recompiles


def test_twelve_kinds_of_object_share_twelve_variants(no_warnings):
    layers = [Layer(i % 12) for i in range(48)]
    with CaptureCounter() as counter:
        for layer in layers:
            compare(eager(layer, X), layer(X))
    assert len(counter.graphs) == 12


def test_the_limit_of_one_object_leaves_the_others_alone():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mode = 0

        @tracer_core.compile(backend="eager", dynamic=False)
        def forward(self, x):
            return x * self.mode

    first, second = Net(), Net()
    with CaptureCounter() as counter:
        with reported_limits(match=r"mode.* but it is 8"):
            for mode in range(12):
                first.mode = mode
                compare(X * mode, first(X))
        assert len(counter.graphs) == 8
        with reported_limits(count=0):
            for mode in range(100, 105):
                second.mode = mode
                compare(X * mode, second(X))
    assert len(counter.graphs) == 13


def test_variants_of_objects_that_are_gone_count():
    fast = tracer_core.compile(lambda b, x: x * b.k, backend="eager", dynamic=False)
    with CaptureCounter() as counter, reported_limits():
        for i in range(20):
            compare(X * i, fast(Box(k=i), X))
    assert len(counter.graphs) == 8


def test_the_overall_bound(monkeypatch):
    monkeypatch.setattr("tracer_core.execution.tiers.recompile_limit.MAX_CACHE_ENTRIES", 10)
    monkeypatch.setattr(guarded_cache, "MAX_CACHE_ENTRIES", 10)
    boxes = [Box(k=i) for i in range(15)]
    fast = tracer_core.compile(lambda b, x: x * b.k, backend="eager", dynamic=False)
    with CaptureCounter() as counter, reported_limits():
        for _ in range(2):
            for b in boxes:
                compare(X * b.k, fast(b, X))
    assert len(counter.graphs) == 10


def test_objects_die(no_warnings):
    layers = [Layer(i) for i in range(10)]
    for layer in layers:
        layer(X), layer(X)
    references = [weakref.ref(layer) for layer in layers]
    weights = [weakref.ref(layer.linear.weight) for layer in layers]
    del layers, layer
    gc.collect()
    assert [r() for r in references] == [None] * 10
    assert [w() for w in weights] == [None] * 10
    (region,) = regions_of(Layer.forward)
    assert not region._roots


def test_an_object_at_the_address_of_another():
    fast = tracer_core.compile(lambda b, x: x * b.k, backend="eager")
    addresses, used_again = set(), 0
    for i in range(5000):  # without the GIL, memory rests for a while
        b = Box(k=i)
        used_again += id(b) in addresses
        addresses.add(id(b))
        compare(X * i, fast(b, X))
        compare(X * i, fast(b, X))
        del b
        if used_again == 5:
            break
    assert used_again == 5, "no address was used again: this test shows nothing here"


def test_objects_that_take_no_weak_references():
    class S:
        __slots__ = ("k",)

    fast = tracer_core.compile(lambda s, x: x * s.k, backend="eager", dynamic=False)
    result = []
    for i in range(5):
        s = S()
        s.k = i
        result.append(s)
        compare(X * i, fast(s, X))
    for s in result:
        compare(X * s.k, fast(s, X))


def test_the_object_is_not_the_first_argument(no_warnings):
    boxes = [Box(k=i) for i in range(20)]
    fast = tracer_core.compile(lambda x, n, b: x * b.k + n, backend="eager", dynamic=False)
    with CaptureCounter() as counter:
        for _ in range(2):
            for b in boxes:
                compare(X * b.k + 1, fast(X, 1, b))
    assert len(counter.graphs) == 20


def test_an_object_given_by_name(no_warnings):
    boxes = [Box(k=i) for i in range(20)]
    fast = tracer_core.compile(lambda x, b=None: x * b.k, backend="eager", dynamic=False)
    with CaptureCounter() as counter:
        for _ in range(2):
            for b in boxes:
                compare(X * b.k, fast(X, b=b))
    assert len(counter.graphs) == 20


def test_modules_of_one_list_called_through_one_function(no_warnings):
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4 + i) for i in range(20))
    fast = tracer_core.compile(
        lambda layer, x: torch.relu(layer(x)), backend="eager", dynamic=False
    )
    with CaptureCounter() as counter:
        for _ in range(2):
            for layer in layers:
                compare(torch.relu(layer(X)), fast(layer, X))
    assert len(counter.graphs) == 20


def test_parts_of_a_parameter_specification():
    """CPython 3.12 frees them without clearing weak references to them."""
    spec = typing.ParamSpec("spec")
    compiled = tracer_core.compile(lambda of, x: (of.args.__origin__ is spec, x + 1))
    for _ in range(4):
        assert compiled(spec, torch.ones(1)) == (True, torch.full((1,), 2.0))
        gc.collect()
