"""A graph without all but four of its equal instances, which stands for the whole one while it is
lowered.

In: a graph module and its `Repeats`. Out: a `Cut`. What always holds: inputs and constants are all
there; the first three instances and the last are, and the last reads of the third what it read of
the one before it; each node of theirs says in its meta which it is (`instance_of`), each input and
constant which node of the whole graph it is (`whole_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.graph_meta import INSTANCE
from inductor_backend.passes.fx_edit import copy_node
from inductor_backend.passes.repeated_subgraphs import KEPT, Repeats, returned_nodes
from inductor_backend.torch_private import lazy_graph_module

Node = torch.fx.Node

_WHOLE = "inductor_whole"


@dataclass(frozen=True, slots=True)
class Cut:
    """whole: the graph as it was. small: what is lowered in its place. repeats: of the whole.
    returned: for each output of the whole, which one of the small graph's it is, or (instance,
    offset, how often that node was returned before)."""

    whole: torch.fx.GraphModule
    small: torch.fx.GraphModule
    repeats: Repeats
    returned: tuple[int | tuple[int, int, int], ...]


def whole_of(node: Node) -> Node | None:
    """Of an input or constant: its node in the whole graph."""
    return node.meta.get(_WHOLE)


def cut_out(whole: torch.fx.GraphModule, repeats: Repeats) -> Cut:
    """The graph to lower in place of the whole one."""
    kept = {number: number for number in range(KEPT - 1)} | {repeats.count - 1: KEPT - 1}
    place = {node: at for at, node in enumerate(repeats.calls)}
    graph = torch.fx.Graph()
    made: dict[Node, Node] = {}
    left_out, third = repeats.instance(repeats.count - 2), repeats.instance(KEPT - 2)
    stand_ins = {repeats.calls[a]: repeats.calls[b] for a, b in zip(left_out, third, strict=True)}
    for node in whole.graph.nodes:
        number, offset = divmod(place.get(node, -1) - repeats.start, repeats.period)
        if node.op == "output":
            continue
        if number in repeats.removed:
            continue
        made[node] = copy = copy_node(
            graph, node, lambda source: made.get(source) or made[stand_ins[source]]
        )
        if number in kept:
            copy.meta[INSTANCE] = (kept[number], offset)
        if node.op in ("placeholder", "get_attr"):
            copy.meta[_WHOLE] = node
    returned, items = _returned(whole.graph, repeats, place)
    graph.output(tuple(made[item] if isinstance(item, Node) else item for item in items))
    return Cut(whole, lazy_graph_module(whole, graph), repeats, returned)


def _returned(
    graph: torch.fx.Graph, repeats: Repeats, place: dict[Node, int]
) -> tuple[tuple[int | tuple[int, int, int], ...], list[Any]]:
    """`Cut.returned`, and what the small graph returns."""
    found: list[int | tuple[int, int, int]] = []
    items: list[Any] = []
    often: dict[int, int] = {}
    for item in returned_nodes(graph):
        number, offset = divmod(place.get(item, -1) - repeats.start, repeats.period)
        if number in repeats.removed:
            turn = often[number] = often.get(number, -1) + 1
            found.append((number, offset, turn))
        else:
            found.append(len(items))
            items.append(item)
    return tuple(found), items
