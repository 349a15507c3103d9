"""Memory that parts of a cut graph write to one after the other, where gradients are needed.

A part may not write to what another part returns: autograd would not know of it. It copies such a
tensor, writes to the copy and returns it, and whatever follows reads the copy. This is right where
all that follows reads the tensor itself, and no view from before the write.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.output_aliasing import OutputLayout
from tracer_core.torch_private.needed import pytree


def memory_of(value: Any) -> int | None:
    """Returns the storage in which a tensor lies; None for other values."""
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return torch_private.storage_id(value) if strided else None


def is_read_whole(
    node: torch.fx.Node, nodes: Collection[torch.fx.Node], done: Collection[torch.fx.Node]
) -> bool:
    """Whether a part of these nodes may hand on a tensor that it writes to: no view of its memory from
    before the part is used in or after it, and none from inside after it, where another write
    follows. done: nodes from before the part."""
    value, inside = node.meta["val"], set(nodes)
    if not OutputLayout.of(value).dense:
        return False
    memory = memory_of(value)
    later = (item for item in node.graph.nodes if item not in inside and item not in done)
    is_last = all(memory not in item.meta.get("writes", ()) for item in later)
    for item in node.graph.nodes:
        leaves = pytree.tree_leaves(item.meta.get("val"))
        shares = any(memory_of(leaf) == memory for leaf in leaves)
        if not shares or item.meta["val"] is value:
            continue
        if item in inside and not is_last and any(user not in inside for user in item.users):
            return False
        if item in done and any(user not in done for user in item.users):
            return False
    return True


def before(node: torch.fx.Node) -> dict[str, Any]:
    """Returns the meta of a tensor from before a part writes to it, whose memory no other value
    shares."""
    value = node.meta["val"]
    fresh = torch_private.fake_like(value).requires_grad_(value.requires_grad)
    return {**node.meta, "val": fresh}


def copied(graph: torch.fx.Graph, value: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
    """Returns the copy of an input, in the graph of a part; it is what the part writes to."""
    result = graph.call_method("clone", (value,))
    result.meta = {key: node.meta[key] for key in ("val", "user_frame") if key in node.meta}
    return result


def without_history(
    nodes: Sequence[torch.fx.Node], copies: Mapping[torch.fx.Node, torch.fx.Node]
) -> None:
    """Gives those results of a part no gradient that get one by a write after it: a fake has
    requires_grad of its last moment."""
    result = [(node, memory_of(node.meta.get("val"))) for node in nodes]
    written = {memory for node in nodes for memory in node.meta.get("writes", ())}
    later = {
        memory for node in nodes[:1] for item in node.graph.nodes for memory in item.meta.get("writes", ())
    } - written  # fmt: skip
    times = [memory for _, memory in result]
    for node, memory in result:
        if memory in later and times.count(memory) == 1 and node.meta["val"].requires_grad:
            fresh = _made_again(node)
            if fresh is not None and not fresh.requires_grad and memory_of(fresh) != memory:
                value = torch_private.fake_like(node.meta["val"])
                copies[node].meta = {**node.meta, "val": value}


def _made_again(node: torch.fx.Node) -> torch.Tensor | None:
    """Returns what a call gives, of the fakes of its arguments."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda leaf: leaf.meta["val"])
    with node.meta["val"].fake_mode, torch.enable_grad():
        if isinstance(node.target, str):
            result = getattr(args[0], node.target)(*args[1:], **kwargs)
        else:
            result = node.target(*args, **kwargs)
    return result if isinstance(result, torch.Tensor) else None
