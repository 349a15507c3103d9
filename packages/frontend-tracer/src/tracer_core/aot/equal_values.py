"""Common subexpression elimination of what is cheap to compute and costly to hold.

Programs compute many values several times: autocast casts an activation for each linear layer that
reads it (query, key and value; the encoder's result in every layer of a decoder), and layers turn
one mask into numbers each. A copy is memory that is written, read, and in training saved.

Merged are views, pointwise operators and constants of a forward pass. Other operators are rarely
equal, and a backward computes values again on purpose (activation checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tracer_core.aot.dead_code import is_size
from tracer_core.aot.memory_owners import Owners
from tracer_core.aot.symbolic_sizes import SYM_TYPES
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait, has_effect, is_pointwise, writes

Node = torch.fx.Node

_CHEAP = overloads_with(Trait.CHEAP) - overloads_with(Trait.UNINITIALIZED)


def merge_equal(nodes: Sequence[Node], returned: Iterable[Node]) -> dict[Node, Node]:
    """Has equal nodes of a functional graph replaced by the first of them, wherever they are read.

    Args:
        nodes: The nodes of the graph, in order. The replaced ones stay in it, without users.
        returned: What the program gets. Its memory stays apart, since the program may write to it.

    Returns:
        Each replaced node with the one in its place.
    """
    returned = list(returned)
    owners = Owners([*nodes, *returned])
    held = {owners.of(node) for node in returned}
    known: dict[Any, Node] = {}
    replaced: dict[Node, Node] = {}
    for node in nodes:
        if node.op != "call_function" or is_size(node):
            continue
        if writes(node.target):
            break  # what is read behind a write may differ
        if owners.of(node) in held or not _is_merged(node, owners):
            continue
        key = (node.target, _key(node.args), _key(node.kwargs))
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            replaced[node] = first
    return replaced


def _is_merged(node: Node, owners: Owners) -> bool:
    if has_effect(node.target) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return is_pointwise(node.target) or node.target in _CHEAP or owners.is_view(node)


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if isinstance(value, (float, complex, *SYM_TYPES)):
        return type(value), repr(value)  # 0.0 is no -0.0, nan is nan
    return type(value), value
