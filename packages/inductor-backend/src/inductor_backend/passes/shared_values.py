"""Computes once what every layer of a model computes again from the same values.

Attention turns a mask of booleans into numbers in each layer, and each layer's copy would be in
memory. The layers are also no equal subgraphs then (`repeated_subgraphs`): the copies are
computed together, before the first of them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from inductor_backend.passes.fx_edit import copy_of
from inductor_backend.passes.repeated_subgraphs import LOWERED, returned_nodes, writes
from tracer_core.plugin_api import Trait, has_effect, is_pointwise, overloads_with

Node = torch.fx.Node

_FILLS = overloads_with(Trait.FILLS)


def with_shared_values(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merges elementwise nodes with equal operators and arguments where at least as many are equal
    as layers have to be. Returns the graph itself where there are none.

    Outputs of the graph stay apart, since the caller may write to them, and so does everything in a
    graph that writes to an input: two reads may see different values.
    """
    nodes = [node for node in gm.graph.nodes if node.op == "call_function"]
    if any(map(writes, nodes)) or not _equal(nodes, returned_nodes(gm.graph)):
        return gm
    copied = copy_of(gm)
    nodes = [node for node in copied.graph.nodes if node.op == "call_function"]
    start = nodes[0]
    for node, first in _equal(nodes, returned_nodes(copied.graph)).items():
        if node is first:
            # in front of the first layer, which would otherwise differ from the others
            sources = [item for item in node.all_input_nodes if item.op == "call_function"]
            if sources:
                max(sources).append(node)
            else:
                start.prepend(node)
        else:
            node.replace_all_uses_with(first)
            copied.graph.erase_node(node)
    return copied


def _equal(nodes: list[Node], outputs: list[Any]) -> dict[Node, Node]:
    """Returns each node of a group of equal ones -> the first of the group, in the graph's order."""
    first: dict[Node, Node] = {}
    known: dict[Any, Node] = {}
    returned = {value for value in outputs if isinstance(value, Node)}
    for node in nodes:
        if node in returned or not _is_elementwise(node):
            continue
        key = (node.target, _key(node.args, first), _key(node.kwargs, first))
        first[node] = known.setdefault(key, node)
    counts = Counter(first.values())
    return {node: shared for node, shared in first.items() if counts[shared] >= LOWERED}


def _is_elementwise(node: Node) -> bool:
    target = node.target
    pure = (is_pointwise(target) or target in _FILLS) and not has_effect(target)
    return pure and isinstance(node.meta.get("val"), torch.Tensor)


def _key(value: Any, first: dict[Node, Node]) -> Any:
    if isinstance(value, Node):
        return first.get(value, value)
    if isinstance(value, (list, tuple)):
        return tuple([_key(item, first) for item in value])
    if isinstance(value, dict):
        return tuple((name, _key(item, first)) for name, item in value.items())
    if isinstance(value, (float, complex, torch.SymInt, torch.SymFloat)):
        return type(value), repr(value)  # 0.0 is no -0.0, nan is nan
    return type(value), value
