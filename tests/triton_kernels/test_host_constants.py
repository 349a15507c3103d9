"""Tables that a program makes on the CPU from numbers, and with which it indexes a GPU's tensors:
evaluated once, and no reason to cut the graph.

Offline, the pass is run on graphs of fake CUDA tensors, and its result by fx on CPU tensors.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core
from inductor_backend.limits import MAX_FOLDED_ELEMENTS
from inductor_backend.passes import host_constants
from inductor_backend.passes.op_support import supports
from tests.support.fake_graphs import FakeGraph

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def constants_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no CUDA device: constants are stored where they were evaluated."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(host_constants, "_on_device", lambda value, device: value)


def relative_positions(rows: int, columns: int, *, also: str = ""):
    """``table[(arange(rows)[:, None] - arange(columns) + columns).long()]``, as relative positions of
    attention are written."""
    g = FakeGraph()
    table = g.input("table", rows + columns, 4, device="cuda:0")
    first = g.call(aten.unsqueeze.default, g.call(aten.arange.default, rows), 1)
    distance = g.call(aten.sub.Tensor, first, g.call(aten.arange.default, columns))
    scaled = g.call(aten.mul.Tensor, g.call(aten.add.Tensor, distance, columns), 1.0)
    places = g.call(aten._to_copy.default, scaled, dtype=torch.int64)
    outputs = [g.call(aten.index.Tensor, table, [places])]
    if also == "returned":
        outputs.append(places)
    elif also == "a cut":  # an index on the CPU that the call brings
        brought = g.input("brought", 3, dtype=torch.int64)
        outputs.append(g.call(aten.index.Tensor, table, [brought]))
    return g.done(outputs)


def test_positions_are_constants_of_the_device():
    gm, spec = relative_positions(5, 3)
    assert all(supports(node) is None for node in gm.graph.nodes)
    result = host_constants.with_constants_on_device(gm, spec)
    assert [n.target for n in result.graph.nodes if n.op == "call_function"] == [aten.index.Tensor]
    (constant,) = result.graph.find_nodes(op="get_attr")
    assert constant.meta["val"].device == CUDA
    table = torch.randn(8, 4)
    places = torch.arange(5)[:, None] - torch.arange(3) + 3
    torch.testing.assert_close(result.forward(table)[0], table[places], rtol=0, atol=0)
    assert len(gm.graph.find_nodes(op="call_function", target=aten.arange.default)) == 2


def test_a_table_that_is_returned_too_is_made_by_each_call():
    gm, spec = relative_positions(5, 3, also="returned")
    result = host_constants.with_constants_on_device(gm, spec)
    table = torch.randn(8, 4)
    (taken, places), (_, again) = result.forward(table), result.forward(table)
    torch.testing.assert_close(taken, table[places], rtol=0, atol=0)
    assert places is not again and places.data_ptr() != again.data_ptr()


def test_tables_beyond_the_limit_are_made_by_each_call():
    rows = MAX_FOLDED_ELEMENTS // 64 + 1
    gm, spec = relative_positions(rows, 64)
    assert host_constants.with_constants_on_device(gm, spec) is gm
    (places,) = gm.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    assert "a result on cpu" in supports(places)


def test_positions_of_a_graph_that_is_cut_elsewhere_stay_with_the_core():
    """The cut may come between a constant and what reads it."""
    gm, _ = relative_positions(5, 3, also="a cut")
    (places,) = gm.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    assert "a result on cpu" in supports(places)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("training", [False, True])
def test_relative_positions_on_a_gpu(training: bool):
    table = torch.randn(15, 8, device="cuda", requires_grad=training)

    def attention(q: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        places = (torch.arange(8)[:, None] * 1.0 - torch.arange(8) + 7).long()
        return torch.einsum("bqc,qkc->bqk", q, table[places]).softmax(-1)

    fast = tracer_core.compile(attention, fullgraph=True)
    for rows in (2, 3, 5):
        q = torch.randn(rows, 8, 8, device="cuda", requires_grad=training)
        actual, expected = fast(q, table), attention(q, table)
        torch.testing.assert_close(actual, expected)
        if training:
            gradients = [
                torch.autograd.grad(r.square().sum(), [q, table]) for r in (actual, expected)
            ]
            torch.testing.assert_close(*gradients)
