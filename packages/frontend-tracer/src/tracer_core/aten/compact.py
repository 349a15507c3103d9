"""Saved values that fewer bytes can hold: masks of zeros and ones are kept as bools.

In: nodes of a joint graph. Out: which may be packed, what they take then, and the nodes that pack and unpack them. What
always holds: what is unpacked is what was packed, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private

aten = torch.ops.aten
Node = torch.fx.Node

#: Operators whose results are zeros and ones, in the dtype of their argument: dropout's masks.
BITS = frozenset({aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor})


def is_bits(node: Node) -> bool:
    """Whether a node's value can be kept as bools."""
    return node.target in BITS and node.meta["val"].dtype is not torch.bool


def packed(graph: torch.fx.Graph, value: Node) -> Node:
    """A node at the end of the graph that makes bools of zeros and ones."""
    return _copied(graph, value, as_bits(value.meta["val"]), value)


def unpacked(graph: torch.fx.Graph, bits: Node, like: Node) -> Node:
    """A node at the end of the graph with the value that `like` had."""
    return _copied(graph, bits, like.meta["val"], like)


def as_bits(value: torch.Tensor) -> torch.Tensor:
    """The fake of the bools that stand for a fake of zeros and ones."""
    with torch_private.fake_mode_of(value):
        found: Any = aten._to_copy.default(value, dtype=torch.bool)
    return found  # type: ignore[no-any-return]


def _copied(graph: torch.fx.Graph, source: Node, result: torch.Tensor, origin: Node) -> Node:
    node = graph.call_function(aten._to_copy.default, (source,), {"dtype": result.dtype})
    node.meta["val"] = result
    node.meta["user_frame"] = origin.meta.get("user_frame", "")
    return node
