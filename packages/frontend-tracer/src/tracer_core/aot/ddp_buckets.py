"""Splits a backward graph by gradient buckets, so that DistributedDataParallel overlaps
communication with computation.

`wanted_parts` says which gradients are sent together. `split` returns graphs (`Part`) that run one
after the other; each returns the gradients of one bucket and the values that later ones need.

Each operator runs once, in the subgraph of the first gradient that needs it. Views and sizes are
recomputed where they are needed, so that no subgraph returns a view of its inputs. A graph that
uses rng or communicates is not split, because the order would change.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.dead_code import is_size
from tracer_core.aot.memory_owners import Owners, clone, subgraph
from tracer_core.aot.symbolic_sizes import free_symbols, size_origins
from tracer_core.ops.traits import runs_once

Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Part:
    """One subgraph of the backward.

    graph: with an output node; returns gradients, then values for later subgraphs. takes: positions
    of its inputs among the inputs of the whole graph and, after those, the values that earlier
    subgraphs returned for later ones. gives: the outputs of the whole graph that it returns, in
    order. done: positions that no later subgraph takes. number: as `split` was asked for it.
    """

    graph: torch.fx.Graph
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    done: tuple[int, ...]
    number: int


def wanted_parts(
    backward: torch.fx.Graph,
    gradients: Sequence[int | None],
    leaves: Sequence[torch.Tensor],
    replica: Any,
) -> list[int]:
    """Returns for each output of a backward graph the subgraph that has to return it.

    gradients: for each leaf the index of an output, a negative number or None. replica: the
    DistributedDataParallel that the leaves belong to.
    """
    (output,) = backward.find_nodes(op="output")
    order = {node: at for at, node in enumerate(backward.nodes)}
    ready = [order[node] for node in output.args[0]]
    result = [
        (ready[g], leaf)
        for g, leaf in zip(gradients, leaves, strict=True)
        if g is not None and g >= 0
    ]
    result.sort(key=operator.itemgetter(0))
    at = {id(leaf): position for position, leaf in reversed(result)}
    buckets = torch_private.buckets_of(replica, [leaf for _, leaf in result])
    ends = sorted({max(at[id(leaf)] for leaf in bucket) for bucket in buckets})
    last = max(len(ends) - 1, 0)
    return [min(bisect.bisect_left(ends, position), last) for position in ready]


def split(backward: torch.fx.Graph, wanted: Sequence[int]) -> list[Part]:
    """Splits a backward graph into at most one subgraph per number in `wanted`; a single one if it
    cannot be split.
    """
    if any(runs_once(node.target) for node in backward.nodes):
        wanted = [0] * len(wanted)
    return _BucketSplit(backward, wanted).parts()


class _BucketSplit:
    """One split. Mutable. part: the subgraph that computes each node."""

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
        """Whether every subgraph recomputes a node that it needs: a size, or a view of earlier
        values.
        """
        return node.op != "placeholder" and (is_size(node) or self.owners.is_view(node))

    def _given_by(self, node: Node) -> int:
        """Returns the subgraph that returns an output: the one that computes its memory."""
        owner = self.owners.of(node)
        return self.part[node if owner.op == "placeholder" else owner]

    def parts(self) -> list[Part]:
        inputs = [self._given_by(node) for node in self.outputs]
        numbers = sorted(set(inputs) | {self.part[n] for n in self.nodes if self._computed(n)})
        gives = {
            number: [index for index, g in enumerate(inputs) if g == number] for number in numbers
        }
        outputs = {number: [self.outputs[index] for index in gives[number]] for number in numbers}
        needs = {number: self._needs(number, outputs[number]) for number in numbers}
        last = {node: number for number in numbers for node in needs[number][0]}
        crossing: dict[int, list[Node]] = {number: [] for number in numbers}
        for node in self.nodes:
            if self._computed(node) and last.get(node, -1) > self.part[node]:
                crossing[self.part[node]].append(node)
        position = {node: at for at, node in enumerate(self.placeholders)}
        for number in numbers:
            for node in crossing[number]:
                position[node] = len(position)
        result = []
        for number in numbers:
            outside, inside = needs[number]
            graph = self._graph(outside, inside, outputs[number], crossing[number])
            takes = tuple(position[node] for node in outside)
            done = tuple(position[node] for node in outside if last[node] == number)
            result.append(Part(graph, takes, tuple(gives[number]), done, number))
        return result

    def _computed(self, node: Node) -> bool:
        return node.op != "placeholder" and not self._again(node)

    def _needs(self, number: int, outputs: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """Returns (values from outside, nodes) of a subgraph, in the order of the whole graph."""
        waiting = [n for n in self.nodes if self._computed(n) and self.part[n] == number]
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
        order = self.order.__getitem__
        return sorted(outside, key=order), sorted(inside, key=order)

    def _add_sizes(self, outside: set[Node], inside: set[Node]) -> None:
        """Adds inputs that show each symbol alone, as subgraphs need it."""
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
        graph, result = subgraph(outside, inside)
        results = []
        for node in outputs:
            value = result[node]
            # A gradient may be written to while later subgraphs read the value.
            if self.owners.of(node) in crossing:
                value = clone(graph, value)
            results.append(value)
        graph.output((*results, *(result[node] for node in crossing)))
        return graph
