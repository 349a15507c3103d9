"""Dead code elimination for ATen graphs, in place.

Keeps inputs, writes, operators that uses rng (eager draws them, so the rng stream must
advance), and collectives, which the other ranks wait for.
"""

from __future__ import annotations

import torch

from tracer_core.aot.symbolic_sizes import SYM_TYPES
from tracer_core.ops import traits


def is_size(node: torch.fx.Node) -> bool:
    """Whether a node computes a number."""
    return isinstance(node.meta.get("val"), (int, float, *SYM_TYPES))


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node matters even if nobody reads its value."""
    return node.op in ("placeholder", "output") or traits.has_effect(node.target)


def remove_dead_nodes(graph: torch.fx.Graph) -> int:
    """Erases every node without users or effects; returns how many there were."""
    removed = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
            removed += 1
    return removed
