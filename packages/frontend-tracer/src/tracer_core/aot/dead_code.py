"""Dead code elimination for ATen graphs, in place.

Keeps inputs, writes, and operators that draw random numbers: eager draws them, so the rng stream
must advance.
"""

from __future__ import annotations

import torch


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node matters even if nobody reads its value."""
    if node.op in ("placeholder", "output"):
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    return schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags  # type: ignore[union-attr]


def remove_dead_nodes(graph: torch.fx.Graph) -> int:
    """Erases every node without users or effects; returns how many there were."""
    removed = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
            removed += 1
    return removed
