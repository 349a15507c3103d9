"""Makes a lowered ATen graph one that ONNX can say, and translates it.

In: a functional ATen graph and its spec. Out: an `Exported`: the serialised model, which graph inputs it
reads under which names, and how each result is made from an output of the model.

ONNX results are contiguous and have names of their own. So: trailing writes become outputs; an output that is
an input, or is returned twice, goes through an Identity; a dense output with other strides is transposed in
the model so that the buffer lies as eager's would; a dimension of stride 0 is cut to size 1 and expanded
afterwards. What always holds: the strides of a result are the ones that the spec promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnxrt_backend import torch_private
from onnxrt_backend.promotion import promote

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Result:
    """One output of the model. name; dtype. order: the permutation that was applied to it (None: none).
    zero_strides: the dimensions that were cut to size 1. shape: of the result, symbolic sizes as SymInts.
    stride: likewise. target: the input it is written to, or None for a graph output."""

    name: str
    dtype: torch.dtype
    order: tuple[int, ...] | None
    zero_strides: tuple[int, ...]
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    target: int | None


@dataclass(frozen=True, slots=True)
class Exported:
    """model: serialised ONNX. inputs: (index among the graph's inputs, name, dtype) of those that the model
    reads. results: graph outputs in order, then writes."""

    model: bytes
    inputs: tuple[tuple[int, str, torch.dtype], ...]
    results: tuple[Result, ...]


def hint(value: Any) -> int:
    """A size as it was in the captured call."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else int(value)


def export(graph: torch.fx.GraphModule, name: str) -> Exported:
    """Translates `graph`. Raises what the exporter raises for an operator it cannot translate."""
    copy = torch.fx.Graph()
    returned = copy.graph_copy(graph.graph, {})
    placeholders = copy.find_nodes(op="placeholder")
    writes = [node for node in copy.nodes if node.target is aten.copy_.default]
    targets = [placeholders.index(node.args[0]) for node in writes]
    values: list[torch.fx.Node] = [*_nodes(returned), *(node.args[1] for node in writes)]
    for node in writes:
        copy.erase_node(node)
    results, nodes = [], []
    for position, node in enumerate(values):
        target = (
            targets[position - len(values) + len(writes)] if position >= len(values) - len(writes) else None
        )
        shaped, order, zeros = _shape_for_onnx(copy, node)
        if shaped.op == "placeholder" or shaped in nodes:
            shaped = _call(copy, aten.clone.default, (shaped,))
        value = node.meta["val"]
        results.append(
            Result(shaped.name, value.dtype, order, zeros, tuple(value.shape), tuple(value.stride()), target)
        )
        nodes.append(shaped)
    copy.output(tuple(nodes))
    used = [(index, node) for index, node in enumerate(placeholders) if node.users]
    for node in placeholders:
        if not node.users:
            copy.erase_node(node)
    promote(copy)
    inputs = tuple((index, node.name, _dtype(node)) for index, node in used)
    return Exported(torch_private.translate(copy, name), inputs, tuple(results))


def _nodes(returned: Any) -> Sequence[torch.fx.Node]:
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def _dtype(node: torch.fx.Node) -> torch.dtype:
    value = node.meta["val"]
    return value.dtype if isinstance(value, torch.Tensor) else torch.int64


def _call(graph: torch.fx.Graph, target: Any, args: tuple[Any, ...]) -> torch.fx.Node:
    """A node at the end of `graph`, with its value."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*torch.fx.map_arg(args, lambda arg: arg.meta["val"]))
    return node


def _shape_for_onnx(
    graph: torch.fx.Graph, node: torch.fx.Node
) -> tuple[torch.fx.Node, tuple[int, ...] | None, tuple[int, ...]]:
    """The node whose contiguous value holds `node`'s elements in their order in memory; see `Result`."""
    value = node.meta["val"]
    sizes, strides = [hint(size) for size in value.shape], [hint(step) for step in value.stride()]
    if 0 in sizes:
        return node, None, ()
    zeros = tuple(
        dim for dim, (size, step) in enumerate(zip(sizes, strides, strict=True)) if not step and size > 1
    )
    for dim in zeros:
        node = _call(graph, aten.slice.Tensor, (node, dim, 0, 1))
        sizes[dim] = 1
    # dimensions of size 1 stay where they are: their stride says nothing
    free = [dim for dim, size in enumerate(sizes) if size > 1]
    by_stride = iter(sorted(free, key=lambda dim: -strides[dim]))
    order = tuple(next(by_stride) if sizes[dim] > 1 else dim for dim in range(len(sizes)))
    if order == tuple(range(len(sizes))):
        return node, None, zeros
    return _call(graph, aten.permute.default, (node, list(order))), order, zeros
