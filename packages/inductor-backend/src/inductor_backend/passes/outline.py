"""Cuts a graph of equal subgraphs (layers) down to four instances, which is lowered in its place.

All inputs and constants stay. The first three instances and the last stay; the last reads from the
third what it read from the one before it. ``meta`` records each node's instance (`INSTANCE`) and,
for inputs and constants, the node of the whole graph (`whole_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.graph_meta import INSTANCE
from inductor_backend.passes.fx_edit import copy_node
from inductor_backend.passes.repeated_subgraphs import LOWERED, Repeats, returned_nodes
from inductor_backend.torch_private import lazy_graph_module

Node = torch.fx.Node

_WHOLE = "inductor_whole"


@dataclass(frozen=True, slots=True)
class Outline:
    """full: the original graph. small: the graph to lower. repeats: of the whole graph. returned:
    for each output of the whole graph, its position in the small graph's outputs, or (instance,
    offset, how many outputs of that instance come before)."""

    full: torch.fx.GraphModule
    small: torch.fx.GraphModule
    repeats: Repeats
    returned: tuple[int | tuple[int, int, int], ...]


def whole_of(node: Node) -> Node | None:
    """Returns the whole graph's node for an input or constant of the small graph."""
    return node.meta.get(_WHOLE)


def outlined(module: torch.fx.GraphModule, repeats: Repeats) -> Outline:
    """Returns the cut of this graph."""
    instances = {number: number for number in range(LOWERED - 1)} | {repeats.count - 1: LOWERED - 1}
    place = {node: at for at, node in enumerate(repeats.calls)}
    graph = torch.fx.Graph()
    result: dict[Node, Node] = {}
    left_out, third = repeats.instance(repeats.count - 2), repeats.instance(LOWERED - 2)
    replacements = {
        repeats.calls[a]: repeats.calls[b] for a, b in zip(left_out, third, strict=True)
    }
    for node in module.graph.nodes:
        number, offset = divmod(place.get(node, -1) - repeats.start, repeats.period)
        if node.op == "output":
            continue
        if number in repeats.removed:
            continue
        result[node] = copy = copy_node(
            graph, node, lambda source: result.get(source) or result[replacements[source]]
        )
        if number in instances:
            copy.meta[INSTANCE] = (instances[number], offset)
        if node.op in ("placeholder", "get_attr"):
            copy.meta[_WHOLE] = node
    returned, items = _returned(module.graph, repeats, place)
    graph.output(tuple(result[output] if isinstance(output, Node) else output for output in items))
    return Outline(module, lazy_graph_module(module, graph), repeats, returned)


def note_all_instances(repeats: Repeats) -> None:
    """Notes of each node of the whole graph which instance it belongs to, so that lowering all of
    them decides as lowering four does."""
    for number in range(repeats.count):
        for offset, at in enumerate(repeats.instance(number)):
            repeats.calls[at].meta[INSTANCE] = (number, offset)


def _returned(
    graph: torch.fx.Graph, repeats: Repeats, place: dict[Node, int]
) -> tuple[tuple[int | tuple[int, int, int], ...], list[Any]]:
    """Returns `Outline.returned` and the small graph's outputs, as nodes of the whole graph."""
    numbers: list[int | tuple[int, int, int]] = []
    items: list[Any] = []
    often: dict[int, int] = {}
    for output in returned_nodes(graph):
        number, offset = divmod(place.get(output, -1) - repeats.start, repeats.period)
        if number in repeats.removed:
            turn = often[number] = often.get(number, -1) + 1
            numbers.append((number, offset, turn))
        else:
            numbers.append(len(items))
            items.append(output)
    return tuple(numbers), items
