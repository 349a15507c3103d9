"""Nothing grows with the number of calls, and what is dropped is gone."""

from __future__ import annotations

import gc
import linecache
import sys
import threading
import tracemalloc
import types
import warnings
import weakref

import pytest
import torch

import tracer_core
from tests.support.guard_facts import Box
from tracer_core import markers

pytestmark = pytest.mark.sweep(keep=6)

X = torch.randn(3, 4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


#: A leak grows in each of so many rounds of calls. What grows in one of them only is not the
#: calls': a table of Python's own that was there before (the one of interned strings, of some
#: megabytes) is made anew, larger or not, each time its free places are used up, and counts as new
#: memory then, since nobody has counted the table that it replaces.
ROUNDS = 3


def grown(call, calls, warm=200):
    """(bytes, objects of the collector) that `calls` calls leave behind: what each of `ROUNDS`
    rounds leaves at least, for as many calls."""
    for i in range(warm):
        call(i)
    gc.collect()
    tracemalloc.start()
    try:
        call(0)
        actual = [_left()]
        for start in range(0, calls, -(-calls // ROUNDS)):
            for i in range(start, min(start + -(-calls // ROUNDS), calls)):
                call(i)
            actual.append(_left())
    finally:
        tracemalloc.stop()
    return tuple(ROUNDS * min(b - a for a, b in zip(pair, pair[1:])) for pair in zip(*actual))


def _left():
    gc.collect()
    return tracemalloc.get_traced_memory()[0], len(gc.get_objects())


def variants_of(fast):
    function = markers.compiled(fast).function
    return sum(
        len(s.entries)
        for s in [
            *function.runtime.regions.starts.values(),
            *function.runtime.regions.inside.values(),
        ]
    )


def assert_flat(call, calls):
    size, objects = grown(call, calls)
    assert size < 50_000, f"{size} bytes more after {calls} calls"
    assert objects < 200, f"{objects} objects more after {calls} calls"


def test_ten_thousand_calls_with_changing_shapes():
    fast = tracer_core.compile(lambda x: torch.relu(x) * 2 + 1, backend="eager")
    inputs = [torch.ones(2 + i % 97, 3 + i % 13) for i in range(97 * 13)]
    assert_flat(lambda i: fast(inputs[i % len(inputs)]), 10_000)
    assert variants_of(fast) <= 3


def test_ten_thousand_calls_with_changing_shapes_of_a_module():
    net = Net()
    fast = tracer_core.compile(net, backend="eager")
    inputs = [torch.ones(2 + i, 4) for i in range(300)]
    with torch.no_grad():
        assert_flat(lambda i: fast(inputs[i % 300]), 10_000)
    assert variants_of(fast) <= 3


def test_static_shapes_stop_at_the_limit():
    fast = tracer_core.compile(lambda x: x * 2, backend="eager", dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_flat(lambda i: fast(torch.ones(2 + i % 50)), 2_000)
    assert variants_of(fast) == 8


def test_calls_that_return_views_and_fresh_objects():
    fast = tracer_core.compile(lambda x: {"a": x[0], "b": [x.t(), (x * 2,)]}, backend="eager")
    assert_flat(lambda i: fast(X), 3_000)


def test_calls_with_graph_breaks():
    def program(x, log):
        x = x * 2
        log.append(float(x.sum()))
        return x + 1

    fast = tracer_core.compile(program, backend="eager")
    assert_flat(lambda i: fast(X, []), 2_000)


def test_calls_that_raise():
    def program(x, n):
        y = x * 2
        raise ValueError(n)
        return y

    fast = tracer_core.compile(program, backend="eager")

    def call(i):
        with pytest.raises(ValueError):
            fast(X, "same")

    assert_flat(call, 500)


def test_calls_that_change_state():
    box = Box(count=torch.zeros(()), log=[])
    fast = tracer_core.compile(
        lambda b, x: (b.__dict__.update(count=b.count + 1), x * 2)[1], backend="eager"
    )
    assert_flat(lambda i: fast(box, X), 2_000)
    assert float(box.count) > 2_000


def test_a_training_step():
    net = Net()
    fast = tracer_core.compile(net, backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)

    def call(i):
        optimizer.zero_grad()
        fast(X).sum().backward()
        optimizer.step()

    assert_flat(call, 500)


def test_many_short_lived_objects():
    fast = tracer_core.compile(lambda b, x: x * b.k, backend="eager")
    assert_flat(lambda i: fast(Box(k=2), X), 2_000)
    function = markers.compiled(fast).function
    (region,) = function.runtime.regions.starts.values()
    assert len(region._roots) <= 1
    assert all(
        len(r.entry_function.__globals__["guard_cache"]._fast_paths) <= 1 for r in function.records
    )


def test_compiling_and_dropping_functions():
    def call(i):
        fast = tracer_core.compile(lambda x: x * 2 + 1, backend="eager")
        fast(X)

    size, objects = grown(call, 100, warm=30)
    assert size < 100_000 and objects < 300, (size, objects)


def test_a_leak_is_seen_and_a_table_that_python_makes_anew_is_none():
    kept, result = [], iter(range(10**9))

    def leaking(i):
        kept.append([i])

    def interning(i):
        for _ in range(500):  # 150,000 in all: more than the table has room for
            sys.intern(f"interned by test_memory {next(result)}")

    size, objects = grown(leaking, 300)
    assert objects >= 295 and size > 300 * 56, (size, objects)
    size, objects = grown(interning, 300, warm=1)
    assert size < 50_000 and objects < 200, (size, objects)


def dropped(make):
    """Whether what make() returns a weak reference to is collected."""
    references = make()
    gc.collect()
    return [reference() is None for reference in references]


def test_a_compiled_function_is_collected():
    def make():
        def program(x):
            return x * 2

        fast = tracer_core.compile(program, backend="eager")
        fast(X)
        return [
            weakref.ref(program),
            weakref.ref(fast),
            weakref.ref(markers.compiled(fast).function),
        ]

    assert all(dropped(make))


@pytest.mark.parametrize("n_calls", [1, 40], ids=["before a comparison", "after one"])
def test_what_was_captured_dies_with_the_function(n_calls, monkeypatch):
    """Without garbage collection: weights that a program has dropped give their memory back."""
    monkeypatch.setenv("TRACER_STRICT", "0")
    net = Net()
    fast = tracer_core.compile(net.forward)
    for _ in range(n_calls):
        fast(X)
    weight, function = weakref.ref(net.layers[0].weight), markers.compiled(fast).function
    record = weakref.ref(function.records[0])
    gc.collect()
    gc.disable()
    try:
        del fast, function, net
        assert record() is None and weight() is None
    finally:
        gc.enable()


def test_a_compiled_module_is_collected():
    def make():
        net = Net()
        fast = tracer_core.compile(net, backend="eager")
        fast(X), fast(torch.ones(5, 4)), fast(X)
        return [weakref.ref(net), weakref.ref(fast), weakref.ref(net.layers[0].weight)]

    assert all(dropped(make))


def test_a_module_given_to_a_compiled_function_is_collected():
    fast = tracer_core.compile(lambda net, x: net(x) + 1, backend="eager")

    def make():
        net = Net()
        fast(net, X), fast(net, X)
        return [weakref.ref(net), weakref.ref(net.layers[0]), weakref.ref(net.layers[0].weight)]

    assert all(dropped(make))
    assert all(dropped(make))


def test_a_module_whose_forward_breaks_is_collected():
    class Breaking(Net):
        def forward(self, x):
            x = super().forward(x)
            tracer_core.graph_break()
            return x + self.layers[0].weight.sum()

    fast = tracer_core.compile(lambda net, x: net(x) + 1, backend="eager")

    def make():
        net = Breaking()
        fast(net, X), fast(net, X)
        return [weakref.ref(net), weakref.ref(net.layers[0].weight)]

    assert all(dropped(make))


def test_arguments_are_not_kept():
    fast = tracer_core.compile(lambda x, items: x * 2 + items[0], backend="eager")

    def make():
        x, y, z = torch.ones(3), torch.ones(3), torch.ones(7)
        fast(x, [y])
        fast(y, [x])
        fast(z, [z])
        return [weakref.ref(x), weakref.ref(y), weakref.ref(z)]

    assert all(dropped(make))


def test_results_are_not_kept():
    fast = tracer_core.compile(lambda x: (x * 2, x + 1), backend="eager")

    def make():
        return [weakref.ref(t) for _ in range(2) for t in fast(X)]

    assert all(dropped(make))


def test_arguments_are_gone_without_the_collector():
    """A trace leaves no cycle that holds the user's tensors until the collector comes."""
    fast = tracer_core.compile(lambda x: torch.relu(x) * 2, backend="eager")
    gc.collect()
    gc.disable()
    try:
        x = torch.ones(4)
        fast(x)
        reference = weakref.ref(x)
        del x
        assert reference() is None
    finally:
        gc.enable()


def test_objects_are_gone_without_the_collector():
    fast = tracer_core.compile(lambda b, x: x * b.k + b.t, backend="eager")
    gc.collect()
    gc.disable()
    try:
        box = Box(k=2, t=torch.ones(4))
        fast(box, X)
        references = [weakref.ref(box), weakref.ref(box.t)]
        del box
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_lines_of_generated_code_are_forgotten():
    def ours():
        return [name for name in linecache.cache if name.startswith("<tracer_core")]

    gc.collect()
    before = len(ours())
    fast = tracer_core.compile(lambda x: x * 2, backend="eager")
    fast(X)
    assert len(ours()) == before + 1
    del fast
    gc.collect()
    assert len(ours()) == before


def test_reset_forgets_what_was_compiled():
    fast = tracer_core.compile(lambda x: x * 2, backend="eager")
    fast(X)
    record = markers.compiled(fast).function.records[0]
    attempt = weakref.ref(record.entry_function)
    del record
    tracer_core.reset()
    gc.collect()
    assert attempt() is None
    torch.testing.assert_close(fast(X), X * 2)


def test_a_thread_that_compiled_leaves_nothing():
    references = []

    def work():
        def program(x):
            return x * 3

        fast = tracer_core.compile(program, backend="eager")
        fast(X)
        references.extend([weakref.ref(program), weakref.ref(fast)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_references_to_none_are_balanced():
    """Words of memory are read, never counted: the reference counts stay."""
    net = Net()
    fast = tracer_core.compile(net, backend="eager")
    with torch.no_grad():
        for _ in range(20):
            fast(X)
        counts = [sys.getrefcount(p) for p in net.parameters()]
        for _ in range(200):
            fast(X)
        assert [sys.getrefcount(p) for p in net.parameters()] == counts


class _Settings:
    def __getattribute__(self, name):
        return super().__getattribute__(name)


def test_the_first_result_goes_when_it_is_dropped_although_the_program_caught_an_exception():
    """transformers' configurations ask so for what they may not have; a result may be most of a
    device's memory.
    """
    settings = _Settings()

    def program(x):
        return x * (2 if getattr(settings, "missing", None) is None else 3)

    fast = tracer_core.compile(program, backend="eager")
    gc.collect()
    gc.disable()
    try:
        result = fast(torch.ones(3))
        reference = weakref.ref(result)
        del result
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("held", ["closure", "dict", "list", "attribute", "optimizer", "tensor"])
@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "dropped"])
def test_what_the_program_rebinds_is_freed_at_the_next_call(held, replaced):
    module = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    tensor = torch.ones(3)
    table, row, holder = {"m": module}, [module], types.SimpleNamespace(m=module)

    def step(x):
        if held == "optimizer":
            module(x).sum().backward()
            optimizer.step()
            return optimizer.zero_grad()
        if held == "tensor":
            return x + tensor
        item = {"closure": module, "dict": table["m"], "list": row[0], "attribute": holder.m}[held]
        return item(x)

    compiled = tracer_core.compile(step, backend="eager")
    x = torch.randn(2, 3)
    for _ in range(3):
        compiled(x)
    old = weakref.ref({"optimizer": optimizer, "tensor": tensor}.get(held, module))
    module = torch.nn.Linear(3, 3) if replaced else None
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1) if replaced else None
    tensor = torch.zeros(3) if replaced else None
    table["m"] = row[0] = holder.m = module
    for _ in range(2):
        if replaced:
            compiled(x)
        else:
            with pytest.raises((TypeError, AttributeError)):
                compiled(x)
    gc.collect()
    assert old() is None
