"""Minimum cuts: against all cuts of small graphs."""

from __future__ import annotations

import itertools
import random

import pytest

from tracer_core.aot.flow_graph import FlowGraph


def random_edges(seed: int) -> dict[tuple[object, object], int | None]:
    random_numbers = random.Random(seed)
    names = ["source", *range(random_numbers.randint(1, 7)), "sink"]
    actual: dict[tuple[object, object], int | None] = {}
    for _ in range(random_numbers.randint(1, 24)):
        start, stop = random_numbers.sample(names, 2)
        actual[start, stop] = (
            None if random_numbers.random() < 0.2 else random_numbers.randint(0, 9)
        )
    return actual


def capacity_of(edges: dict[tuple[object, object], int | None], before: set[object]) -> float:
    crossing = [room for (a, b), room in edges.items() if a in before and b not in before]
    return sum(float("inf") if room is None else room for room in crossing)


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_smaller_and_none_as_small_is_nearer_to_the_sink(seed):
    edges = random_edges(seed)
    graph = FlowGraph()
    for (start, stop), room in edges.items():
        graph.edge(start, stop, room)
    inner = {item for edge in edges for item in edge} - {"source", "sink"}
    sides = [
        {"source", *some}
        for count in range(len(inner) + 1)
        for some in itertools.combinations(inner, count)
    ]
    least = min(capacity_of(edges, side) for side in sides)
    if least == float("inf"):
        with pytest.raises(ValueError, match="no cut is finite"):
            graph.before_cut("source", "sink")
        return
    actual = graph.before_cut("source", "sink")
    assert capacity_of(edges, actual | {"source"}) == least
    largest = max(len(side) for side in sides if capacity_of(edges, side) == least)
    assert len(actual | {"source"}) == largest


def test_many_ways_through_one_node_are_found_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search for each of them took seconds for nets of a thousand values."""
    searches = 0
    levels = FlowGraph._levels

    def counted(self: FlowGraph, stop: int) -> list[int]:
        nonlocal searches
        searches += 1
        return levels(self, stop)

    monkeypatch.setattr(FlowGraph, "_levels", counted)
    graph = FlowGraph()
    for number in range(50):
        graph.edge("source", number)
        graph.edge(number, "sum", number + 1)
    graph.edge("sum", "sink", 10_000)
    assert graph.before_cut("source", "sink") == {"source", *range(50)}
    assert searches == 2
