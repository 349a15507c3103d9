"""Views that name a place in memory, of inputs that a graph writes to.

In: a captured graph with the eager (fake) values of its nodes, and the inputs that it writes to. Out: nothing, or
LoweringUnsupported. What always holds: a graph that passes never asks for ``as_strided(..., storage_offset)`` of memory
that it writes to: there the offset counts from the beginning of the input's storage, while a functional graph's new
value begins at 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aten.errors import LoweringUnsupported

aten = torch.ops.aten

#: Captured call -> where its offset stands among the arguments.
_OFFSETS: dict[Any, int] = {
    **dict.fromkeys((torch.as_strided, torch.Tensor.as_strided, "as_strided", aten.as_strided, aten.as_strided.default), 3),
    **dict.fromkeys((torch.as_strided_copy, aten.as_strided_copy, aten.as_strided_copy.default), 3),
    **dict.fromkeys((torch.as_strided_scatter, torch.Tensor.as_strided_scatter, "as_strided_scatter"), 4),
    **dict.fromkeys((aten.as_strided_scatter, aten.as_strided_scatter.default), 4),
}  # fmt: skip


def require_none(
    graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any], written: Collection[torch.Tensor]
) -> None:
    """Raises for a view that names its place in the memory of one of the inputs `written`."""
    if not written:
        return
    storages = {torch_private.storage_id(value) for value in written}
    for node in graph.nodes:
        place = _OFFSETS.get(node.target)
        if place is None:
            continue
        offset = node.args[place] if len(node.args) > place else node.kwargs.get("storage_offset")
        base = node.args[0] if node.args else node.kwargs.get("self", node.kwargs.get("input"))
        if offset is not None and torch_private.storage_id(values[base]) in storages:
            raise LoweringUnsupported(
                "as_strided with a storage_offset of an input that the graph writes to",
                node.meta.get("user_frame") or "",
            )
