"""Partitions a joint graph: the backward keeps the forward values that eager keeps.

Only views and filled tensors are recomputed: every operator is a kernel of its own here, so
recomputing costs a launch and a pass over memory."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cudagraphs_backend.torch_private import OpOverload
from tracer_core.plugin_api import Trait, overloads_with

FILLS = overloads_with(Trait.FILLS)


def saved(joint: torch.fx.GraphModule) -> Iterable[str]:
    """Returns the names of the forward nodes that the backward reads, or of the nodes that own the
    memory viewed by those."""
    names: dict[str, None] = {}
    for node in joint.graph.nodes:
        if node.meta.get("phase") == "backward":
            for source in node.all_input_nodes:
                owner = _owner(source)
                if owner.meta.get("phase") == "forward" and _is_saved(owner):
                    names[owner.name] = None
    (output,) = joint.graph.find_nodes(op="output")
    for gradient in output.args[0][1]:
        if (
            gradient is not None
            and gradient.meta.get("phase") == "forward"
            and _is_saved(_owner(gradient))
        ):
            names[_owner(gradient).name] = None
    return names


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """Returns the node whose memory a chain of views shows."""
    while node.op == "call_function" and _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_view(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and bool(node.target.is_view)


def _is_saved(node: torch.fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.target not in FILLS
        and isinstance(node.meta.get("val"), torch.Tensor)
    )
