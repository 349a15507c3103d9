"""Collectives are nodes of the graph: values are eager's, on every rank, over several calls."""

from __future__ import annotations

import pytest

from tests.distributed.in_graph import PROGRAMS

ONE_GRAPH = {"graphs": 1, "breaks": [], "recompiles": 0}


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_one_graph(pair, backend):
    for seen in pair.run("in_graph:called", names=list(PROGRAMS), backend=backend):
        assert seen == dict.fromkeys(PROGRAMS, ONE_GRAPH)
