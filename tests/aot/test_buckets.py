"""A backward graph cut into parts: run one after the other they give what the whole gives."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn import functional as F

from tests.aot.parts import backward_of, run_in_parts
from tracer_core.aot.ddp_buckets import split
from tracer_core.aot.symbolic_sizes import free_symbols, size_origins
from tracer_core.testing import compare


def layers(x, *weights):
    for weight in weights:
        x = torch.tanh(x @ weight)
    return x


def shared(x, a, b):
    """The gradient of one weight is computed from that of the other."""
    h = x @ a
    return (h @ a + h @ b).relu()


def views(x, a, b):
    h = (x @ a).view(2, -1).t().reshape(-1, 4)
    first, second = torch.split(h @ b, 2, dim=1)
    return first * second.expand_as(first)


def norms(x, a, b):
    h = F.layer_norm(x @ a, (4,), b[0], b[1])
    return F.softmax(h, -1) @ a


def biases(x, a, b):
    """Gradients that are reductions and views of one value."""
    return (x + b[0].expand_as(x)) @ a + b.sum() + b.t().reshape(-1)[:4]


PROGRAMS = {"layers": layers, "shared": shared, "views": views, "norms": norms, "biases": biases}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_parts_give_what_the_whole_gives(name, dynamic):
    torch.manual_seed(0)
    x, a, b = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
    graph, inputs, want = backward_of(PROGRAMS[name], x, a, b, dynamic=dynamic)
    count = len(want)
    arguments = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    assert dynamic == any(map(free_symbols, arguments))
    rng = random.Random(0)
    orders = [[0] * count, list(range(count)), list(range(count))[::-1]]
    orders += [[rng.randrange(4) for _ in range(count)] for _ in range(10)]
    for wanted in orders:
        parts = split(graph, wanted)
        assert sorted(index for part in parts for index in part.gives) == list(range(count))
        for part in parts:
            assert part.gives, "a part that gives no gradient"
            part.graph.lint()
            values = [node.meta["val"] for node in part.graph.find_nodes(op="placeholder")]
            used = {
                symbol for node in part.graph.nodes for symbol in free_symbols(node.meta.get("val"))
            }
            assert used <= size_origins(values).keys()
        compare(want, run_in_parts(parts, inputs, count))


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_operator_runs_twice_and_nothing_is_a_view_of_what_a_part_was_given(name):
    torch.manual_seed(0)
    x, a, b = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
    graph, inputs, want = backward_of(PROGRAMS[name], x, a, b)
    parts = split(graph, list(range(len(want)))[::-1])

    def products(graphs):
        nodes = [
            n
            for graph in graphs
            for n in graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
        ]
        return len(nodes)

    assert products([graph]) == products([part.graph for part in parts]) > 0
    run_in_parts(parts, inputs, len(want), check_memory=True)


def test_a_graph_that_draws_is_not_cut():
    def draws(x, a, b):
        return F.rrelu(x @ a, training=True) @ b

    torch.manual_seed(0)
    x, a, b = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
    graph, _, want = backward_of(draws, x, a, b)
    for node in graph.nodes:
        assert torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())
    assert len(split(graph, list(range(len(want))))) > 1
    node = next(n for n in graph.nodes if n.op == "call_function")
    with graph.inserting_before(node):
        drawn = graph.call_function(torch.ops.aten.rand.default, ([2],))
        drawn.meta["val"] = torch.empty(2)
    assert len(split(graph, list(range(len(want))))) == 1
