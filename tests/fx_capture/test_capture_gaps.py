"""Programs that used to end the graph: identities, functions that torch made, predicates, data in
the graphs of callable backends."""

from __future__ import annotations

import functools
import itertools
import types

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch.utils import _pytree as pytree

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.gradients import same_gradients
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)


# Identity of keys


class Plain:
    pass


KEYS = {
    "in-a-set": lambda x, a, b: x * (2 if b in {a} else 3),
    "in-a-dict": lambda x, a, b: x * (2 if b in {a: 1} else 3),
    "get": lambda x, a, b: x * {a: 2}.get(b, 3),
    "dict": lambda x, a, b: x * len({a: 2, b: 3}),
    "set": lambda x, a, b: x * len({a, b}),
    "list": lambda x, a, b: x * (2 if b in [a] else 3),
    "tuple-key": lambda x, a, b: x * {(a, 1): 2}.get((b, 1), 3),
    "id": lambda x, a, b: x * (2 if id(a) == id(b) else 3),
}
MAKERS = {
    "instance": Plain,
    "module": nn.ReLU,
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "tensor": lambda: torch.ones(2),
    "object": object,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", KEYS)
def test_keys_that_become_one_object(name, kind):
    if name == "list" and kind in ("parameter", "tensor"):
        pytest.skip("the items of a list are compared, and tensors have no single answer")
    m, n = MAKERS[kind](), MAKERS[kind]()
    function = KEYS[name]
    compiled = tracer_core.compile(function, backend="eager")
    for a, b in ((m, n), (m, m), (n, n), (n, m), (m, m)):
        compare(function(X, a, b), compiled(X, a, b))


BEFORE = {
    "get": lambda x, d, n: x * d.get(n, 7),
    "in": lambda x, d, n: x * (2 if n in d else 3),
    "set": lambda x, d, n: x * len(d | {n: 2}),
    "store": lambda x, d, n: (d.__setitem__(n, 5), x * len(d))[1],
    "pop": lambda x, d, n: x * d.pop(n, 9),
    "setdefault": lambda x, d, n: (d.setdefault(n, 4), x * len(d))[1],
    "update": lambda x, d, n: (d.update({n: 4}), x * len(d))[1],
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", BEFORE)
def test_keys_of_a_dictionary_from_before(name, kind):
    m, n = MAKERS[kind](), MAKERS[kind]()
    function = BEFORE[name]
    compiled = tracer_core.compile(function, backend="eager")
    for key in (n, m, n, m):
        item, other = {m: 2}, {m: 2}
        compare(function(X, item, key), compiled(X, other, key))
        assert [*map(id, item)] == [*map(id, other)] and [*item.values()] == [*other.values()]


def test_a_set_of_modules_from_before():
    m, n = nn.ReLU(), nn.ReLU()

    def f(x, chosen, layer):
        return x * (2 if layer in chosen else 3)

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        for chosen, layer in (({m}, n), ({m}, m), ({n}, n), ({n, m}, nn.ReLU()), ({n, m}, m)):
            compare(f(X, chosen, layer), compiled(X, chosen, layer))
    assert not counter.breaks


def test_the_members_of_a_set_from_before_are_not_constants():
    def f(x, chosen, more):
        for layer in chosen | more:
            x = layer(x) + layer.shift
        return x * len(chosen)

    def layer(shift):
        module = nn.ReLU()
        module.shift = shift
        return module

    compiled = tracer_core.compile(f, backend="eager")
    m = layer(1)
    for shift in (1, 2, 3):
        m.shift = shift
        compare(f(X, {m}, set()), compiled(X, {m}, set()))
        compare(f(X, set(), {layer(shift)}), compiled(X, set(), {layer(shift)}))


def test_modules_seen_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.scales = {id(self.first): 2, id(self.second): 3}

        def forward(self, x):
            seen = set()
            for layer in (self.first, self.second, self.first):
                if layer not in seen:
                    seen.add(layer)
                    x = layer(x)
            return x * self.scales.get(id(self.first), 1) + len(seen)

    def tie(module):
        module.second = module.first

    def make():
        torch.manual_seed(0)
        return Shared()

    compare_with_eager(make, (X,), (Y,), tie, (X,), breaks=0)


# Predicates

PREDICATES = {
    "fx": lambda x: x + torch.fx._symbolic_trace.is_fx_tracing(),
    "onnx": lambda x: x + torch.onnx.is_in_onnx_export(),
    "functorch": lambda x: (
        x + torch._C._functorch.is_batchedtensor(x) + torch._C._functorch.maybe_get_level(x)
    ),
    "grad": lambda x: x + torch._C._functorch.is_gradtrackingtensor(x * 2),
}


@pytest.mark.parametrize("name", PREDICATES)
def test_predicate(name):
    same(PREDICATES[name], (X,), (Y,), breaks=0, graphs=1)


def test_predicates_under_a_transform():
    def f(x):
        return torch.vmap(lambda row: row + torch._C._functorch.is_batchedtensor(row))(x)

    same(f, (X,), (Y,), breaks=None)


# Functions that torch made


@torch.jit.script
def scripted(x: torch.Tensor, n: int) -> torch.Tensor:
    if n > 2:
        x = x * n
    return torch.relu(x)


@torch.jit.script
def scaled_size(query: torch.Tensor, factor: int) -> torch.Tensor:
    return torch.sqrt(torch.tensor(query.size(-1), dtype=torch.float) * factor)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_scripted_functions(backend):
    def f(x, n):
        return scripted(x + 1, n) - x / scaled_size(x, 3)

    same(f, (X, 1), (X, 3), (Y, 1), breaks=0, backend=backend)


def test_gradient_of_a_scripted_function():
    leaf = X.clone().requires_grad_()
    same_gradients(lambda: lambda x: scripted(x, 3).sin(), (leaf,))


@pytest.mark.filterwarnings("ignore")
def test_a_traced_function_does_what_its_example_did():
    traced = torch.jit.trace(lambda x: x * 2 if x.sum() > 0 else x * 3, torch.ones(3, 4))
    same(lambda x: traced(x) + 1, (X.abs(),), (-X.abs(),), breaks=0)


def test_a_scripted_function_is_replaced():
    def make():
        box = types.SimpleNamespace(function=scripted)
        return (lambda x: box.function(x, 3)), box

    other = torch.jit.script(negated)
    compare_with_eager(make, (X,), lambda box: setattr(box, "function", other), (X,), breaks=0)


def negated(x: torch.Tensor, n: int) -> torch.Tensor:
    return -x * n


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.layer(x)) + 1


def test_graph_modules():
    torch.manual_seed(0)
    module = torch.fx.symbolic_trace(Inner())
    same(lambda x: module(x) * 2, (X,), (Y,), breaks=0, graphs=1)


def test_a_recompiled_graph_module():
    module = torch.fx.symbolic_trace(Inner())

    def change(_):
        for node in module.graph.nodes:
            if node.target is torch.relu:
                node.target = torch.tanh
        module.recompile()

    def f(x):
        return module(x)

    compiled = tracer_core.compile(f, backend="eager")
    compare(f(X), compiled(X))
    change(module)
    compare(f(X), compiled(X))


MAPS = {
    "closure": lambda x: torch_map(lambda row: row * 2 + x.sum(), x * 1),
    "pytree": lambda x: torch_map(
        lambda part, y: (part[0] + y, {"d": part[1] * y}), (x * 1, x + 1), x[0] * 2
    ),
    "number": lambda x: torch_map(lambda row, n: row.sum() * n, x, 3),
}


def test_map():
    rows = {
        "closure": lambda x: torch.stack([row * 2 + x.sum() for row in x]),
        "pytree": lambda x: (
            torch.stack([row + x[0] * 2 for row in x]),
            {"d": torch.stack([(row + 1) * x[0] * 2 for row in x])},
        ),
        "number": lambda x: torch.stack([row.sum() * 3 for row in x]),
    }
    for name, function in MAPS.items():
        compiled = tracer_core.compile(function, backend="eager")
        with CaptureCounter() as counter:
            for x in (X, Y):
                compare(rows[name](x), compiled(x))
        assert not counter.breaks, name


# Iterators that outlive the graph


def late_binding(x):
    box = [1]
    actual = map(lambda n: x * n * box[0], range(4))
    first = next(actual)
    box[0] = 7
    return first, actual


LEAVING = {
    "map": lambda x: map(lambda row: row * 2, x),
    "map-of-two": lambda x: map(lambda a, b: a * b, [x, x + 1, x + 2], iter((1, 2))),
    "filter": lambda x: filter(lambda part: part.dim() == 1, [x[0] * 2, x, x[1]]),
    "filter-none": lambda x: filter(None, [0, 3, x.dim(), None]),
    "filterfalse": lambda x: itertools.filterfalse(lambda n: n % 2, range(x.dim() + 4)),
    "late-binding": late_binding,
    "zip-of-a-map": lambda x: zip(range(9), map(torch.relu, [x, -x]), strict=False),
    "advanced": lambda x: _advanced(map(lambda n: x + n, [1, 2, 3])),
    "used-up": lambda x: _used_up(map(lambda n: x + n, [1, 2])),
    "over-a-generator": lambda x: map(lambda row: row * 2, (x + n for n in range(2))),
}


def _advanced(actual):
    next(actual)
    return actual


def _used_up(actual):
    list(actual)
    return actual


@pytest.mark.parametrize("name", LEAVING)
def test_iterators_that_leave(name):
    function = LEAVING[name]
    compiled = tracer_core.compile(function, backend="eager")
    for x in (X, Y, X):
        want, got = function(x), compiled(x)
        if isinstance(want, tuple):
            compare(want[0], got[0])
            want, got = want[1], got[1]
        assert type(want) is type(got)
        compare(list(want), list(got))


def test_an_iterator_across_a_break():
    def f(x):
        actual = map(lambda n: x * n, [1, 2, 3])
        first = next(actual)
        print(end="", flush=[])
        return first, next(actual), list(actual)

    same(f, (X,), (Y,), breaks=None)


# torch.return_types

RETURNED = {
    "flattened": lambda x: pytree.tree_map(lambda leaf: leaf * 2, x.max(dim=1)),
    "made": lambda x: torch.return_types.max((x * 2, x > 0)),
    "from-a-generator": lambda x: torch.return_types.sort(item + 1 for item in x.sort()),
    "wrong-length": lambda x: _error(lambda: torch.return_types.max([x])),
}


def _error(function):
    try:
        return function()
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("name", RETURNED)
def test_return_types(name):
    same(RETURNED[name], (X,), (Y,), breaks=None if name == "wrong-length" else 0)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_the_other_branch_of_cond_has_gradients_of_zeros(backend):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(x):
        return torch.cond(x.sum() > 0, first, second, (x,))

    compiled = tracer_core.compile(f, backend=backend)
    for x, taken, other in ((X.abs(), first, second), (-X.abs(), second, first)):
        for layer in (first, second):
            layer.zero_grad()
        result = compiled(x)
        compare(taken(x), result)
        result.sum().backward()
        assert other.weight.grad is not None and not other.weight.grad.any()
        assert taken.weight.grad.any()


# Cached functions


def _cached_with_effect():
    seen = []

    @functools.lru_cache
    def cached(n):
        seen.append(n)
        return n * 2

    def f(x):
        before = len(seen)
        return x * cached(2), before, len(seen)

    return f, types.SimpleNamespace(clear=cached.cache_clear, read=lambda: list(seen))


def _cached_with_nonlocal():
    count = 0

    @functools.lru_cache
    def cached(n):
        nonlocal count
        count += 1
        return n * 2

    def f(x):
        before = count
        return x * cached(2), before, count

    return f, types.SimpleNamespace(clear=cached.cache_clear, read=lambda: count)


def _cached_on_an_object():
    class Table:
        calls = 0

        @functools.lru_cache
        def entry(self, n):
            self.calls += 1
            return n * 2

    table = Table()

    def f(x):
        before = table.calls
        return x * table.entry(2), before, table.calls

    return f, types.SimpleNamespace(clear=Table.entry.cache_clear, read=lambda: table.calls)


@pytest.mark.parametrize(
    "make",
    [_cached_with_effect, _cached_with_nonlocal, _cached_on_an_object],
    ids=lambda value: value.__name__.strip("_"),
)
def test_a_cached_function_that_changes_state(make):
    (eager, world), (target, other) = make(), make()
    compiled = tracer_core.compile(target, backend="eager")
    for number in range(5):
        if number in (2, 4):
            world.clear(), other.clear()
        compare(eager(X), compiled(X))
        assert world.read() == other.read()


def test_pure_cached_functions_are_captured():
    @functools.lru_cache
    def sizes(n):
        actual = []
        for i in range(n):
            actual.append(i * 2)
        return tuple(actual)

    same(lambda x: x * sum(sizes(4)), (X,), (Y,), breaks=0)
