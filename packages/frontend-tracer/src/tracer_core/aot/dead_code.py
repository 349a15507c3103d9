"""Dead code elimination for ATen graphs, in place.

Keeps inputs, writes, operators that draw random numbers (eager draws them, so the rng stream must
advance), and collectives, which the other ranks wait for.
"""

from __future__ import annotations

import torch

from tracer_core import torch_private
from tracer_core.aot.symbolic_sizes import SYM_TYPES


def is_size(node: torch.fx.Node) -> bool:
    """Whether a node computes a number."""
    return isinstance(node.meta.get("val"), (int, float, *SYM_TYPES))


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def runs_once(node: torch.fx.Node) -> bool:
    """Whether a node must run exactly once, in the order of the other such nodes: it draws random
    numbers or communicates."""
    return is_random(node) or torch_private.communicates(node.target)


def writes(node: torch.fx.Node) -> bool:
    """Whether a node writes to an operand."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node matters even if nobody reads its value."""
    return node.op in ("placeholder", "output") or writes(node) or runs_once(node)


def remove_dead_nodes(graph: torch.fx.Graph) -> int:
    """Erases every node without users or effects; returns how many there were."""
    removed = 0
    for node in reversed(list(graph.nodes)):
        if not node.users and not has_effect(node):
            graph.erase_node(node)
            removed += 1
    return removed
