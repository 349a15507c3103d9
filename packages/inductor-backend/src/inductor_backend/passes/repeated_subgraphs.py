"""Equal parts of a graph that follow one another: the layers of a transformer.

In: an ATen graph. Out: `Repeats`, or None. What always holds: the nodes of all instances pair up
one by one, with the same operator, the same constants and inputs of the same shape, strides and
dtype; a node of an instance reads its own instance, the one before, the inputs of the graph, and
what was computed before the first instance; what it computes is read by its own instance, the next
one and the graph's outputs. No random numbers and no writes are among them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.passes.constant_subgraph import VIEWS
from tracer_core.plugin_api import operators

Node = torch.fx.Node

#: Instances that are lowered: the first, the two that are compared, and the last.
KEPT = 4

#: Nodes that must be saved, at least: finding and comparing is not free.
WORTH = 40

#: Nodes in a row that must look alike for a distance to be tried, and how many distances are.
WINDOW, DISTANCES = 6, 3

#: Attention that takes a probability of dropout and refuses all but 0.
WITHOUT_DROPOUT = frozenset({operators("aten")._scaled_dot_product_flash_attention_for_cpu.default})


@dataclass(frozen=True, slots=True)
class Repeats:
    """calls: the nodes of the graph that compute, in the order in which they are compared. reads:
    the nodes among the arguments of each, as often as they occur. start: the first node of the
    first instance. period: the nodes of an instance. count: the instances."""

    calls: tuple[Node, ...]
    reads: tuple[tuple[Node, ...], ...]
    start: int
    period: int
    count: int

    def instance(self, number: int) -> range:
        """Where in `calls` its nodes are."""
        first = self.start + number * self.period
        return range(first, first + self.period)

    @property
    def removed(self) -> range:
        """The instances that are not lowered: all but the first three and the last."""
        return range(KEPT - 1, self.count - 1)

    def inputs(self, number: int) -> dict[Node, Node] | None:
        """What the third instance reads of the graph's inputs and constants -> what this one reads
        in its place; None where the one would stand for two, and where constants differ: what
        follows from them is computed beforehand."""
        found: dict[Node, Node] = {}
        for mine, theirs in zip(self.instance(KEPT - 2), self.instance(number), strict=True):
            for a, b in zip(self.reads[mine], self.reads[theirs], strict=True):
                if a.op != "call_function" and (
                    found.setdefault(a, b) is not b or (a.op == "get_attr" and a is not b)
                ):
                    return None
        return found


def find_repeats(graph: torch.fx.Graph) -> Repeats | None:
    """The equal parts of a graph that are worth it."""
    calls = _calls(graph)
    if len(calls) < KEPT * WINDOW + WORTH:
        return None
    search = _Search(calls)
    best: Repeats | None = None
    for period in search.distances():
        found = search.longest(period)
        if found is not None and (best is None or _saved(found) > _saved(best)):
            best = found
        if best is not None and 2 * _saved(best) > len(calls):
            break
    return (
        best
        if best is not None and _saved(best) >= WORTH and _is_closed(graph, best, search.place)
        else None
    )


def _calls(graph: torch.fx.Graph) -> tuple[Node, ...]:
    """The nodes that compute, in order; views of weights, which freezing puts in front, where they
    are read.
    """
    found: list[Node] = []
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
        found += [*reversed(views), node]
    return (*found, *(node for node in graph.nodes if node in waiting))


def _saved(found: Repeats) -> int:
    return len(found.removed) * found.period


# what nodes look like
# ---------------------------------------------------------------------------------


def _look(value: Any, sources: list[Node]) -> Any:
    """What must be equal in arguments that pair up, but for which nodes they read: those are added
    to `sources`.
    """
    if isinstance(value, Node):
        sources.append(value)
        return "node" if value.op == "call_function" else (value.op, _meta(value.meta.get("val")))
    if isinstance(value, (list, tuple)):
        return (isinstance(value, tuple), *[_look(one, sources) for one in value])
    if isinstance(value, dict):
        return tuple((name, _look(one, sources)) for name, one in value.items())
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return "symbol", str(value)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)  # 0.0 is no -0.0, nan is nan
    return type(value), value


def _meta(value: Any) -> Any:
    """Of an input all that lowering may look at."""
    if not isinstance(value, torch.Tensor):
        return type(value), str(value)
    sizes = (*value.shape, *value.stride())
    numbers = tuple(size if isinstance(size, int) else str(size) for size in sizes)
    return numbers, value.dtype, value.device, value.layout, value.is_quantized


class _Search:
    """place: of each node in `calls`. reads: see `Repeats`. colors: a number for how each node
    looks. Not changed once made.
    """

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
        """Distances at which the sequence is likely to be like itself, the commonest first."""
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
        """The longest stretch in which each node is like the one a period later."""
        first, last, start = 0, 0, 0
        for at in range(len(self.calls) - period):
            if not self._pairs(at, at + period, start):
                start = at + 1
            elif at + 1 - start > last - first:
                first, last = start, at + 1
        if last + period - first < (KEPT + 1) * period:
            return None
        begin = first + self._calmest(first, period)
        return Repeats(self.calls, self.reads, begin, period, (last + period - begin) // period)

    def _pairs(self, here: int, there: int, start: int) -> bool:
        """Whether the later one is to the earlier one what the next instance's node is. start:
        where the stretch began; what lies before it is shared."""
        if self.colors[here] != self.colors[there]:
            return False
        for one, other in zip(self.reads[here], self.reads[there], strict=True):
            if one.op != "call_function" or other.op != "call_function":
                continue  # inputs, which look alike
            if self.place[other] - self.place[one] != there - here and not (
                one is other and self.place[one] < start
            ):
                return False
        return True

    def _calmest(self, first: int, period: int) -> int:
        """Where to cut: at which node of a period fewest values are computed before and read
        after.
        """
        crossing = [0] * period
        for at in range(first + period, first + 2 * period):
            ends = [self.place[user] for user in self.calls[at].users if user in self.place]
            reach = min(max(ends, default=at), at + period)
            for cut in range(at + 1, reach + 1):
                crossing[(cut - first) % period] += 1
        return min(range(period), key=crossing.__getitem__)


# what may be cut out
# ----------------------------------------------------------------------------------


def _is_closed(graph: torch.fx.Graph, found: Repeats, place: dict[Node, int]) -> bool:
    """What the module promises of the instances but for their being equal."""
    first, end = found.start, found.start + found.count * found.period
    written = {write.args[0] for write in found.calls if _writes(write)}
    if any(_writes(found.calls[at]) or _draws(found.calls[at]) for at in found.instance(1)):
        return False
    for at in range(first, end):
        number = (at - first) // found.period
        for source in found.reads[at]:
            where = place.get(source)
            if source in written or (
                where is not None and first <= where < first + (number - 1) * found.period
            ):
                return False
        if number != found.count - 1 and any(
            place.get(user, -1) >= end for user in found.calls[at].users
        ):
            return False
    return _outputs_repeat(graph, found, place)


def _outputs_repeat(graph: torch.fx.Graph, found: Repeats, place: dict[Node, int]) -> bool:
    """The graph returns of each instance in the middle what it returns of the others, in the same
    order.
    """
    returned: dict[int, list[int]] = {number: [] for number in range(1, found.count - 1)}
    for node in returned_nodes(graph):
        number, offset = divmod(place.get(node, -1) - found.start, found.period)
        if number in returned:
            returned[number].append(offset)
    return all(offsets == returned[1] for offsets in returned.values())


def returned_nodes(graph: torch.fx.Graph) -> list[Any]:
    """What a graph returns, one after the other."""
    (output,) = graph.find_nodes(op="output")
    (values,) = output.args
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _draws(node: Node) -> bool:
    return node.target not in WITHOUT_DROPOUT and torch.Tag.nondeterministic_seeded in getattr(
        node.target, "tags", ()
    )
