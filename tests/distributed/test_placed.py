"""DTensors are in the graph: their values, placements and gradients are eager's, on every rank."""

from __future__ import annotations

import pytest

from tests.distributed.placed import MODULES, PLANS, ROWS

pytest.importorskip("torch.distributed.tensor")
pytestmark = pytest.mark.sweep(keep=6)
ONE_GRAPH = {"graphs": 1, "breaks": [], "recompiles": 0}
LIMIT = 300.0


TWO_GRAPHS = {"graphs": 2, "breaks": []}  # with gradients and without


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_modules(pair, backend, rows):
    for seen in pair.run("placed:called", LIMIT, names=list(MODULES), backend=backend, rows=rows):
        assert seen == dict.fromkeys(MODULES, TWO_GRAPHS)


def test_modules_of_inductor(pair):
    names = ["Weights", "Between", "Exchanged"]
    for seen in pair.run("placed:called", LIMIT, names=names, backend="inductor", rows="uneven"):
        assert seen == dict.fromkeys(names, TWO_GRAPHS)


def test_true_gradients(pair):
    pair.run("placed:true_gradients", LIMIT)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_guards(pair, backend):
    """Eight kinds of arguments are eight graphs, made once."""
    for seen in pair.run("placed:placements_change", LIMIT, backend=backend):
        assert seen == {"graphs": 8, "breaks": [], "recompiles": 7}


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_sizes_change(pair, backend):
    pair.run("placed:sizes_change", LIMIT, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_other_gradients(pair, backend):
    pair.run("placed:other_gradients", LIMIT, backend=backend)


def test_writes(pair):
    pair.run("placed:written", LIMIT)


def test_random_numbers(pair):
    assert pair.run("placed:dropped", LIMIT, backend="aten_eager") == [ONE_GRAPH, ONE_GRAPH]


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_a_break(pair, backend):
    for seen in pair.run("placed:interrupted", LIMIT, backend=backend):
        assert seen["breaks"] == ["requested"] * 2  # with gradients, and without


def test_mixed_with_plain_tensors(pair):
    pair.run("placed:mixed_with_plain", LIMIT)


def test_a_graph_that_raises(pair):
    pair.run("placed:failing", LIMIT)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_split_embedding(pair, backend):
    assert pair.run("placed:tokens", LIMIT, backend=backend) == [ONE_GRAPH, ONE_GRAPH]


@pytest.mark.parametrize("plan", PLANS)
def test_parallelized(pair, plan):
    for seen in pair.run("placed:parallelized", LIMIT, plan=plan, backend="aten_eager"):
        assert seen == ONE_GRAPH


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_transformers(pair, name):
    pytest.importorskip("transformers")
    for seen in pair.run("placed:transformer", LIMIT, name=name, backend="aten_eager"):
        assert seen == ONE_GRAPH


def test_parts_of_the_sequence(pair):
    pytest.importorskip("transformers")
    for seen in pair.run("placed:sequence_block", LIMIT, backend="aten_eager"):
        assert seen == ONE_GRAPH
