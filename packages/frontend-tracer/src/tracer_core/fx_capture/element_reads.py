"""Subscripts by integers that depend on data (``table[step]``, `step` a 0-d tensor), as copies.

In eager mode such a subscript is a view, whose place in memory the host must know first. A copy by
aten.index is the same for a program in which nothing writes to the memory of either afterwards and the
result does not leave the graph. That is known at its end: `why_views` says what forbids it, and the
region is traced again without copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.may_raise import written_storages
from tracer_core.torch_private.needed import pytree

_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def read_at(tensor: torch.Tensor, *indices: Any) -> torch.Tensor:
    """Subscripts a tensor by 0-d tensors and integers. Target of a graph node."""
    places = [
        index.long()
        if isinstance(index, torch.Tensor)
        else torch.full((), index, dtype=torch.int64, device=tensor.device)
        for index in indices
    ]
    read: torch.Tensor = torch.ops.aten.index.Tensor(tensor, places)
    return read


def fits(tensor: torch.Tensor, indices: Sequence[Any]) -> bool:
    """Returns whether a copy has the strides of the view, and its check of the indices raises as
    eager's does (on GPUs it would end the process's CUDA context)."""
    if tensor.device.type != "cpu" or not 0 < len(indices) <= tensor.dim():
        return False
    data = [index for index in indices if isinstance(index, torch.Tensor)]
    numbers = all(
        item.dim() == 0 and item.dtype in _NUMBERS and item.device.type == "cpu" for item in data
    )
    simple = not any(map(torch_private.is_subclass, (tensor, *data)))
    others = all(type(index) is int for index in indices if not isinstance(index, torch.Tensor))
    return bool(data) and numbers and simple and others and _is_dense(tensor, len(indices))


def _is_dense(tensor: torch.Tensor, first: int) -> bool:
    """Returns whether the dimensions from `first` on are contiguous."""
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return False
    step: Any = 1
    for size, stride in reversed(list(zip(tensor.shape, tensor.stride(), strict=True))[first:]):
        if type(size) is not int or stride != step:
            return False
        step *= size
    return True


def was_written(tensor: torch.fx.Node, since: torch.fx.Node) -> bool:
    """Returns whether the graph may have written to a tensor behind a node."""
    storage, node = torch_private.storage_id(tensor.meta["val"]), since.next
    while node.op != "root":
        if storage in written_storages(node):
            return True
        node = node.next
    return False


def is_copy(graph: torch.fx.Graph, storage: int) -> bool:
    """Returns whether a storage of the trace was made by such a copy."""
    return any(
        node.target is read_at and torch_private.storage_id(node.meta["val"]) == storage
        for node in graph.nodes
    )


def why_views(graph: torch.fx.Graph) -> str | None:
    """Returns why subscripts of the graph must be views as in eager mode; None where copies do."""
    shared: set[int] = set()
    numbers: set[int] = set()
    for node in graph.nodes:
        if not shared.isdisjoint(written_storages(node)):
            return "memory that a subscript reads by a number that depends on data is written to"
        if node.target is read_at:
            result = torch_private.storage_id(node.meta["val"])
            numbers.add(result)
            shared |= {result, torch_private.storage_id(node.args[0].meta["val"])}
        if node.op == "output":
            values = (source.meta["val"] for source in node.all_input_nodes)
            tensors = [
                leaf for leaf in pytree.tree_leaves(list(values)) if isinstance(leaf, torch.Tensor)
            ]
            if not numbers.isdisjoint(map(torch_private.storage_id, tensors)):
                return "a view at a number that depends on data leaves the graph"
    return None
