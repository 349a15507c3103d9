"""Minimum cuts of directed graphs (Dinic's algorithm: Dinitz, "Algorithm for solution of a problem
of maximum flow in networks", 1970).

Edges between hashable nodes have integer capacities, or infinite ones. Of all minimum cuts, the one
nearest to the sink is returned. A path of infinite capacity from source to sink raises ValueError.

networkx is not used: importing it takes 12 MiB and 0.2 s in every process that trains.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_UNLIMITED = 1 << 200


class FlowGraph:
    """Edges, each with its reverse beside it (number ^ 1). Mutable."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._leaving: list[list[int]] = []  # node -> edges
        self._to: list[int] = []  # edge -> node
        self._left: list[int] = []  # edge -> residual capacity

    def _number(self, node: Hashable) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self._leaving)
            self._leaving.append([])
        return number

    def edge(self, start: Hashable, stop: Hashable, capacity: int | None = None) -> None:
        """Adds an edge. capacity None: infinite."""
        a, b = self._number(start), self._number(stop)
        for origin, target, room in (
            (a, b, _UNLIMITED if capacity is None else capacity),
            (b, a, 0),
        ):
            self._leaving[origin].append(len(self._to))
            self._to.append(target)
            self._left.append(room)

    def before_cut(self, source: Hashable, sink: Hashable) -> set[Any]:
        """Returns the source's side: the nodes that cannot reach the sink once the flow is a
        maximum.
        """
        start, stop = self._number(source), self._number(sink)
        while True:
            levels = self._levels(stop)
            if levels[start] < 0:
                return {node for node, number in self._numbers.items() if levels[number] < 0}
            self._saturate(start, stop, levels)

    def _levels(self, stop: int) -> list[int]:
        """Returns the least number of residual edges from each node to the sink; -1 for unconnected
        nodes.
        """
        levels = [-1] * len(self._leaving)
        levels[stop] = 0
        waiting = [stop]
        for node in waiting:  # grows while it is iterated
            for edge in self._leaving[node]:
                origin = self._to[edge]
                if levels[origin] < 0 and self._left[edge ^ 1] > 0:
                    levels[origin] = levels[node] + 1
                    waiting.append(origin)
        return levels

    def _saturate(self, start: int, stop: int, levels: list[int]) -> None:
        """Finds a blocking flow: augments along paths on which each edge descends one level."""
        tried = [0] * len(self._leaving)  # node -> number of its exhausted edges
        way: list[int] = []
        node = start
        while True:
            if node == stop:
                self._send(way)
                full = next(place for place, edge in enumerate(way) if self._left[edge] == 0)
                node = self._to[way[full] ^ 1]
                del way[full:]
            edge = self._next(node, levels, tried)
            if edge is not None:
                way.append(edge)
                node = self._to[edge]
            elif way:  # a dead end
                levels[node] = -1
                node = self._to[way.pop() ^ 1]
            else:
                return

    def _next(self, node: int, levels: list[int], tried: list[int]) -> int | None:
        """Returns the node's first usable edge that descends one level."""
        edges, below = self._leaving[node], levels[node] - 1
        for place in range(tried[node], len(edges)):
            edge = edges[place]
            if self._left[edge] > 0 and levels[self._to[edge]] == below:
                tried[node] = place
                return edge
        tried[node] = len(edges)
        return None

    def _send(self, way: list[int]) -> None:
        amount = min(self._left[edge] for edge in way)
        if amount >= _UNLIMITED // 2:
            raise ValueError("a path from source to sink has no capacity: no cut is finite")
        for edge in way:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
