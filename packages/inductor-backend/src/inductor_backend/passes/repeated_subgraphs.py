"""Finds equal subgraphs that follow one another: the layers of a transformer.

The nodes of all instances pair up one by one: same operator, same constants, inputs of the same
shape, strides and dtype. An instance reads only itself, the one before, graph inputs, and values
computed before the first instance; only itself, the next one and the graph's outputs read it.
Instances draw no random numbers, do not communicate and mutate nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.passes.constant_subgraph import VIEWS
from tracer_core.plugin_api import operators, runs_once

Node = torch.fx.Node

#: Instances that are lowered: the first, the two that are compared, and the last.
LOWERED = 4

#: The fewest saved nodes that pay for the search and the comparison.
WORTH = 40

#: Nodes in a row that must look alike for a distance to count, and how many distances are tried.
WINDOW, DISTANCES = 6, 3

#: Attention with a dropout argument that raises for all but 0.
WITHOUT_DROPOUT = frozenset({operators("aten")._scaled_dot_product_flash_attention_for_cpu.default})


@dataclass(frozen=True, slots=True)
class Repeats:
    """calls: the graph's call nodes, in the order of comparison. reads: the nodes among each one's
    arguments, repeated as they occur. start: position in `calls` where the first instance begins.
    period: nodes of one instance. count: number of instances."""

    calls: tuple[Node, ...]
    reads: tuple[tuple[Node, ...], ...]
    start: int
    period: int
    count: int

    def instance(self, number: int) -> range:
        """Returns the positions of its nodes in `calls`."""
        first = self.start + number * self.period
        return range(first, first + self.period)

    @property
    def removed(self) -> range:
        """The instances that are not lowered: all but the first three and the last."""
        return range(LOWERED - 1, self.count - 1)

    def inputs(self, number: int) -> dict[Node, Node] | None:
        """Maps graph inputs and constants that the third instance reads to those that this one
        reads in their place. None where one input would map to two, and where constants differ:
        what follows from them is computed at compile time."""
        result: dict[Node, Node] = {}
        for mine, theirs in zip(self.instance(LOWERED - 2), self.instance(number), strict=True):
            for a, b in zip(self.reads[mine], self.reads[theirs], strict=True):
                if a.op != "call_function" and (
                    result.setdefault(a, b) is not b or (a.op == "get_attr" and a is not b)
                ):
                    return None
        return result


def find_repeats(graph: torch.fx.Graph) -> Repeats | None:
    """Returns the equal subgraphs that save the most, or None where too little would be saved."""
    calls = _calls(graph)
    if len(calls) < LOWERED * WINDOW + WORTH:
        return None
    search = _Search(calls)
    best: Repeats | None = None
    for period in search.distances():
        result = search.longest(period)
        if result is not None and (best is None or _saved(result) > _saved(best)):
            best = result
        if best is not None and 2 * _saved(best) > len(calls):
            break
    return (
        best
        if best is not None and _saved(best) >= WORTH and _is_closed(graph, best, search.place)
        else None
    )


def _calls(graph: torch.fx.Graph) -> tuple[Node, ...]:
    """Returns the call nodes in order, with views of weights, which freezing puts in front, moved
    to where they are read."""
    nodes: list[Node] = []
    waiting: set[Node] = set()
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        sources = node.all_input_nodes
        if (
            node.target in VIEWS
            and len(node.users) == 1
            and all(s.op == "placeholder" or s in waiting for s in sources)
        ):
            waiting.add(node)
            continue
        stack = [source for source in reversed(sources) if source in waiting]
        views: list[Node] = []
        while stack:
            view = stack.pop()
            waiting.discard(view)
            views.append(view)
            stack += [source for source in view.all_input_nodes if source in waiting]
        nodes += [*reversed(views), node]
    return (*nodes, *(node for node in graph.nodes if node in waiting))


def _saved(repeats: Repeats) -> int:
    return len(repeats.removed) * repeats.period


# equality of nodes --------------------------------------------------------------------------------


def _look(value: Any, sources: list[Node]) -> Any:
    """Returns a key of what must be equal in arguments that pair up. Appends the nodes among them,
    which may differ, to `sources`."""
    if isinstance(value, Node):
        sources.append(value)
        return "node" if value.op == "call_function" else (value.op, _meta(value.meta.get("val")))
    if isinstance(value, (list, tuple)):
        return (isinstance(value, tuple), *[_look(element, sources) for element in value])
    if isinstance(value, dict):
        return tuple((name, _look(element, sources)) for name, element in value.items())
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return "symbol", value.node.expr
    if isinstance(value, (float, complex)):
        return type(value), repr(value)  # 0.0 is no -0.0, nan is nan
    return type(value), value


def _meta(value: Any) -> Any:
    """Returns all that a lowering may look at in an input."""
    if not isinstance(value, torch.Tensor):
        return type(value), str(value)
    sizes = (*value.shape, *value.stride())
    numbers = tuple(size if isinstance(size, int) else size.node.expr for size in sizes)
    return numbers, value.dtype, value.device, value.layout, value.is_quantized


class _Search:
    """Immutable. place: position of each node in `calls`. reads: see `Repeats`. colors: nodes with
    equal operator and arguments share a number."""

    def __init__(self, calls: tuple[Node, ...]) -> None:
        self.calls = calls
        self.place = {node: at for at, node in enumerate(calls)}
        looks: dict[Any, int] = {}
        reads, self.colors = [], []
        for node in calls:
            sources: list[Node] = []
            look = (node.target, _look(node.args, sources), _look(node.kwargs, sources))
            self.colors.append(looks.setdefault(look, len(looks)))
            reads.append(tuple(sources))
        self.reads = tuple(reads)

    def distances(self) -> list[int]:
        """Returns the distances at which the sequence most often repeats itself, the commonest
        first."""
        last: dict[tuple[int, ...], int] = {}
        votes: Counter[int] = Counter()
        for at in range(len(self.colors) - WINDOW + 1):
            window = tuple(self.colors[at : at + WINDOW])
            before = last.get(window)
            if before is not None:
                votes[at - before] += 1
            last[window] = at
        return [distance for distance, _ in votes.most_common(DISTANCES)]

    def longest(self, period: int) -> Repeats | None:
        """Returns the longest stretch in which each node pairs with the one a period later."""
        first, last, start = 0, 0, 0
        for at in range(len(self.calls) - period):
            if not self._pairs(at, at + period, start):
                start = at + 1
            elif at + 1 - start > last - first:
                first, last = start, at + 1
        if last + period - first < (LOWERED + 1) * period:
            return None
        begin = first + self._calmest(first, period)
        return Repeats(self.calls, self.reads, begin, period, (last + period - begin) // period)

    def _pairs(self, here: int, there: int, start: int) -> bool:
        """Checks that node `there` does in the next instance what `here` does in its own. start:
        where the stretch began; nodes before it are shared by all instances."""
        if self.colors[here] != self.colors[there]:
            return False
        for source, other in zip(self.reads[here], self.reads[there], strict=True):
            if source.op != "call_function" or other.op != "call_function":
                continue  # inputs: their equal `_meta` is part of the color
            if self.place[other] - self.place[source] != there - here and not (
                source is other and self.place[source] < start
            ):
                return False
        return True

    def _calmest(self, first: int, period: int) -> int:
        """Returns the offset within the period that the fewest values cross, to cut there."""
        crossing = [0] * period
        for at in range(first + period, first + 2 * period):
            ends = [self.place[user] for user in self.calls[at].users if user in self.place]
            reach = min(max(ends, default=at), at + period)
            for boundary in range(at + 1, reach + 1):
                crossing[(boundary - first) % period] += 1
        return min(range(period), key=crossing.__getitem__)


# conditions on instances --------------------------------------------------------------------------


def _is_closed(graph: torch.fx.Graph, repeats: Repeats, place: dict[Node, int]) -> bool:
    """Checks the conditions of the module docstring, except equality, which the search ensures."""
    first, end = repeats.start, repeats.start + repeats.count * repeats.period
    written = {write.args[0] for write in repeats.calls if writes(write)}
    if any(
        writes(repeats.calls[at]) or _is_random(repeats.calls[at]) for at in repeats.instance(1)
    ):
        return False
    for at in range(first, end):
        number = (at - first) // repeats.period
        for source in repeats.reads[at]:
            where = place.get(source)
            if source in written or (
                where is not None and first <= where < first + (number - 1) * repeats.period
            ):
                return False
        if number != repeats.count - 1 and any(
            place.get(user, -1) >= end for user in repeats.calls[at].users
        ):
            return False
    return _outputs_repeat(graph, repeats, place)


def _outputs_repeat(graph: torch.fx.Graph, repeats: Repeats, place: dict[Node, int]) -> bool:
    """Checks that the graph returns the same offsets of every middle instance, in equal order."""
    returned: dict[int, list[int]] = {number: [] for number in range(1, repeats.count - 1)}
    for node in returned_nodes(graph):
        number, offset = divmod(place.get(node, -1) - repeats.start, repeats.period)
        if number in returned:
            returned[number].append(offset)
    return all(offsets == returned[1] for offsets in returned.values())


def returned_nodes(graph: torch.fx.Graph) -> list[Any]:
    """Returns the graph's outputs as a list."""
    (output,) = graph.find_nodes(op="output")
    (values,) = output.args
    return list(values) if isinstance(values, (list, tuple)) else [values]


def writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_random(node: Node) -> bool:
    return node.target not in WITHOUT_DROPOUT and runs_once(node.target)
