"""A backward graph in parts, so that DistributedDataParallel sends some gradients while others are
computed.

In: the backward graph of a captured graph, and which of its gradients are sent together
(`wanted_parts`). Out: `Part`s: graphs that run one after the other, each of which gives the
gradients of one bucket and what later parts need.

What always holds: each operator runs once, in the part of the first gradient that needs it; views
and sizes are made again where they are needed, so that no part returns a view of what it was given;
a graph that draws random numbers is not cut, since their order would change.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.memory_owners import Owners, clone
from tracer_core.aot.partitioner import is_size
from tracer_core.aot.symbolic_sizes import free_symbols, size_origins

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Part:
    """graph: with an output node; it returns gradients, then values for later parts. takes: the
    positions of its inputs among the inputs of the whole graph and, after those, the values that
    earlier parts have returned for later ones. gives: the outputs of the whole graph that it
    returns, in order. done: positions that no later part takes."""

    graph: torch.fx.Graph
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    done: tuple[int, ...]


def wanted_parts(
    backward: torch.fx.Graph,
    gradients: Sequence[int | None],
    leaves: Sequence[torch.Tensor],
    replica: Any,
) -> list[int]:
    """For each output of a backward graph, the part that has to give it. gradients: for each leaf
    the index of an output, a negative number or None. replica: the DistributedDataParallel that the
    leaves belong to."""
    (output,) = backward.find_nodes(op="output")
    order = {node: at for at, node in enumerate(backward.nodes)}
    ready = [order[node] for node in output.args[0]]
    found = [
        (ready[g], leaf)
        for g, leaf in zip(gradients, leaves, strict=True)
        if g is not None and g >= 0
    ]
    found.sort(key=operator.itemgetter(0))
    at = {id(leaf): position for position, leaf in reversed(found)}
    buckets = torch_private.buckets_of(replica, [leaf for _, leaf in found])
    ends = sorted({max(at[id(leaf)] for leaf in bucket) for bucket in buckets})
    last = max(len(ends) - 1, 0)
    return [min(bisect.bisect_left(ends, position), last) for position in ready]


def cut(backward: torch.fx.Graph, wanted: Sequence[int]) -> list[Part]:
    """The parts of a backward graph, at most one for each number in `wanted`; a single one if it
    cannot be cut.
    """
    if any(
        torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in backward.nodes
    ):
        wanted = [0] * len(wanted)
    return _Cut(backward, wanted).parts()


class _Cut:
    """One cut (mutable). part: of each node the part that computes it."""

    def __init__(self, backward: torch.fx.Graph, wanted: Sequence[int]) -> None:
        (output,) = backward.find_nodes(op="output")
        self.nodes = [node for node in backward.nodes if node is not output]
        self.order = {node: at for at, node in enumerate(self.nodes)}
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.outputs: tuple[Node, ...] = tuple(output.args[0])
        self.owners = Owners(self.nodes)
        self.part: dict[Node, int] = {}
        for node, number in zip(self.outputs, wanted, strict=True):
            self.part[node] = min(number, self.part.get(node, number))
        for node in reversed(self.nodes):
            numbers = [self.part[user] for user in node.users if user is not output]
            numbers += [self.part[node]] if node in self.part else []
            self.part[node] = min(numbers, default=0)
        for node in self.nodes:
            if node.target is operator.getitem and node.args[0] in self.part:
                self.part[node] = self.part[node.args[0]]

    def _again(self, node: Node) -> bool:
        """Whether a node is made again in every part that needs it: it computes a size, or views of
        earlier values.
        """
        if node.op == "placeholder":
            return False
        if is_size(node):
            return True
        return self.owners.is_view(node)

    def _given_by(self, node: Node) -> int:
        """The part that gives an output: the one that computes its memory."""
        owner = self.owners.of(node)
        return self.part[node if owner.op == "placeholder" else owner]

    def parts(self) -> list[Part]:
        given = [self._given_by(node) for node in self.outputs]
        numbers = sorted(set(given) | {self.part[n] for n in self.nodes if self._computed(n)})
        needs = {
            number: self._needs(
                number, [n for n, g in zip(self.outputs, given, strict=True) if g == number]
            )
            for number in numbers
        }
        crossing = {
            number: [
                node
                for node in self.nodes
                if self._computed(node)
                and self.part[node] == number
                and any(node in needs[later][0] for later in numbers if later > number)
            ]
            for number in numbers
        }
        position = {node: at for at, node in enumerate(self.placeholders)}
        for number in numbers:
            for node in crossing[number]:
                position[node] = len(position)
        last = {node: number for number in numbers for node in needs[number][0]}
        made = []
        for number in numbers:
            outside, inside = needs[number]
            gives = tuple(index for index, g in enumerate(given) if g == number)
            graph = self._graph(
                outside, inside, [self.outputs[index] for index in gives], crossing[number]
            )
            takes = tuple(position[node] for node in outside)
            done = tuple(position[node] for node in outside if last[node] == number)
            made.append(Part(graph, takes, gives, done))
        return made

    def _computed(self, node: Node) -> bool:
        return node.op != "placeholder" and not self._again(node)

    def _needs(self, number: int, outputs: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """(values from outside, nodes) of a part, in the order of the whole graph."""
        waiting = [
            node for node in self.nodes if self._computed(node) and self.part[node] == number
        ]
        waiting += outputs
        outside: set[Node] = set()
        inside: set[Node] = set()
        while waiting:
            node = waiting.pop()
            if node in outside or node in inside:
                continue
            if node.op == "placeholder" or (self._computed(node) and self.part[node] != number):
                outside.add(node)
            else:
                inside.add(node)
                waiting += node.all_input_nodes
        self._add_sizes(outside, inside)
        return sorted(outside, key=self.order.__getitem__), sorted(
            inside, key=self.order.__getitem__
        )

    def _add_sizes(self, outside: set[Node], inside: set[Node]) -> None:
        """Symbols must be found alone among the inputs of a part."""
        symbols = {
            symbol for node in (*outside, *inside) for symbol in free_symbols(node.meta.get("val"))
        }
        symbols -= size_origins([node.meta["val"] for node in outside]).keys()
        origins = size_origins([node.meta["val"] for node in self.placeholders])
        outside.update(
            self.placeholders[origins[symbol].index] for symbol in symbols if symbol in origins
        )

    def _graph(
        self,
        outside: Sequence[Node],
        inside: Sequence[Node],
        outputs: Sequence[Node],
        crossing: Sequence[Node],
    ) -> torch.fx.Graph:
        graph = torch.fx.Graph()
        made: dict[Node, Node] = {}
        for node in outside:
            made[node] = graph.placeholder(node.name)
            made[node].meta.update(node.meta)
        for node in inside:
            made[node] = graph.node_copy(node, made.__getitem__)
        results = []
        for node in outputs:
            value = made[node]
            # A gradient may be written to while later parts read the value.
            if self.owners.of(node) in crossing:
                value = clone(graph, value)
            results.append(value)
        graph.output((*results, *(made[node] for node in crossing)))
        return graph
