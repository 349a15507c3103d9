"""CUDA graphs of graphs that communicate: collectives run between the recorded parts, in every call,
on every rank."""

from __future__ import annotations

import pytest

pytest.importorskip("cudagraphs_backend")

from tests.distributed.in_graph import DIFFERENTIABLE, PROGRAMS

LIMIT = 300.0


def replayed(seen, names):
    """Demands that each program replays. How early depends on the addresses that its inputs get:
    a CUDA graph is recorded once they were seen before."""
    assert list(seen) == list(names)
    for name in names:
        assert seen[name]["replays"] and not seen[name]["reasons"], (name, seen[name])


def test_programs(pair):
    names = list(PROGRAMS)
    for seen in pair.run("recorded:called", limit=LIMIT, names=names):
        replayed(seen, names)


def test_gradients(pair):
    # through_functions runs eagerly: its functions communicate in place
    names = [name for name in DIFFERENTIABLE if name != "through_functions"]
    for seen in pair.run("recorded:trained", limit=LIMIT, names=names):
        replayed(seen, names)


def test_ranks_that_differ(pair):
    for seen in pair.run("recorded:one_records", limit=LIMIT):
        assert seen["replays"] > 0


def test_tensor_parallelism(pair):
    for seen in pair.run("recorded:parallel", limit=LIMIT):
        assert seen["replays"] > 0 and not seen["reasons"]
