"""Collectives are nodes of the graph: values are eager's, on every rank, over several calls."""

from __future__ import annotations

import pytest

from tests.distributed.in_graph import DIFFERENTIABLE, FEW, PROGRAMS

ONE_GRAPH = {"graphs": 1, "breaks": [], "recompiles": 0}
#: Under load, the first call of each of many programs takes its time.
LIMIT = 300.0


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_one_graph(pair, backend):
    names = list(FEW if backend == "inductor" else PROGRAMS)
    for seen in pair.run("in_graph:called", limit=LIMIT, names=names, backend=backend):
        assert seen == dict.fromkeys(names, ONE_GRAPH)


def test_ranks_that_differ(pair):
    pair.run("in_graph:one_compiles", limit=LIMIT)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_gradients(pair, backend):
    names = list(DIFFERENTIABLE)
    for seen in pair.run("in_graph:trained", limit=LIMIT, names=names, backend=backend):
        assert seen == dict.fromkeys(names, ONE_GRAPH)
