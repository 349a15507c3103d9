"""Adds the gradient of an embedding to another gradient in place, row by row.

This is for a weight that is both looked up and multiplied with (tied embeddings of BERT and GPT-2):
it avoids a zero-filled tensor of the weight's size (300 MB for GPT-2) that is scattered into and
added. The other gradient's memory is written to only where a matmul or another such sum made it and
nothing else reads it; otherwise it is copied first.

On GPUs gradients of gathers are scattered into a copy of what they are added to, or into its own
memory where that is such a gradient, too (those of the two ends of a graph's edges).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import same_tensors
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten
from inductor_backend.lowering.scatter import Target, embedding_gradient, put_into, sums_dtype
from tracer_core.plugin_api import Trait, overloads_with

#: Operators whose result has memory of its own (as has an in-place sum).
FRESH = frozenset({aten.mm.default, aten.addmm.default, aten.embedding_dense_backward.default})

_ZEROS = frozenset({aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default})
_FULL = frozenset({aten.full.default, aten.full_like.default})

_VIEWS = overloads_with(Trait.KEEPS_ELEMENTS)


@dataclass(frozen=True, slots=True)
class Sum:
    """node: the sum. gradient: the embedding's gradient, which nothing else reads. other: what it
    is added to. root: the node that made the memory of `other`, if that may be written to."""

    node: torch.fx.Node
    gradient: torch.fx.Node
    other: torch.fx.Node
    root: torch.fx.Node | None


def sums_of_gradients(graph: torch.fx.Graph) -> dict[torch.fx.Node, Sum]:
    """Maps each such gradient and its sum to their `Sum`."""
    match: dict[torch.fx.Node, Sum] = {}
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if (
            len(node.args) != 2
            or node.kwargs
            or not all(isinstance(a, torch.fx.Node) for a in node.args)
        ):
            continue
        for gradient, other in (node.args, node.args[::-1]):
            if _fits(node, gradient, other) and order[other] < order[gradient]:
                root = _root(other, node)
                fresh = root is not None and (root.target in FRESH or root in match)
                match[gradient] = match[node] = Sum(node, gradient, other, root if fresh else None)
                break
    return match


def sums_of_scatters(graph: torch.fx.Graph) -> dict[torch.fx.Node, Sum]:
    """Maps gradients of gathers that are added to what came before, and the sums, to their `Sum`."""
    match: dict[torch.fx.Node, Sum] = {}
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if len(node.args) != 2 or node.kwargs or len(node.all_input_nodes) != 2:
            continue
        other, gradient = sorted(node.args, key=order.__getitem__)
        values = [value.meta["val"] for value in (gradient, other, node)]
        own = set(gradient.users) == {node} and _adds_to_zeros(gradient)
        if own and same_tensors(values):
            written = (other in match or _adds_to_zeros(other)) and set(other.users) == {node}
            match[gradient] = match[node] = Sum(node, gradient, other, other if written else None)
    return match


def _adds_to_zeros(node: torch.fx.Node) -> bool:
    """Checks for floats that are added to zeros at indices on their own device."""
    if node.target is not aten.index_put.default or not (*node.args, False)[3]:
        return False
    zeros, indices = node.args[:2]
    value = node.meta["val"]
    if not isinstance(zeros, torch.fx.Node) or not value.dtype.is_floating_point:
        return False
    filled = (*zeros.args, None)[1] == 0 if zeros.target in _FULL else zeros.target in _ZEROS
    places = [index.meta["val"] for index in indices if index is not None]  # type: ignore[union-attr]
    known = all(i.dtype in (torch.int32, torch.int64) and i.device == value.device for i in places)
    return bool(filled) and known and len(indices) <= value.dim()  # type: ignore[arg-type]


def _root(other: torch.fx.Node, reader: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the node behind views that nothing but this sum reads, or None."""
    while set(other.users) == {reader}:
        if other.target not in _VIEWS:
            return other
        reader, other = other, other.args[0]  # type: ignore[assignment]
    return None


def _fits(node: torch.fx.Node, gradient: torch.fx.Node, other: torch.fx.Node) -> bool:
    if gradient.target is not aten.embedding_dense_backward.default or set(gradient.users) != {
        node
    }:
        return False
    values = [value.meta["val"] for value in (gradient, other, node)]
    wide = values[0].dtype in (torch.float32, torch.float64)
    return wide and gradient.args[4] is False and same_tensors(values)


def add_to(ctx: Lowering, of: Sum, value_of: Callable[[Any], Any]) -> Ref:
    """Lowers the sum."""
    target = _base(ctx, of, value_of(of.other))
    if of.gradient.target is aten.index_put.default:
        _, places, values = map(value_of, of.gradient.args[:3])
        return put_into(target, ctx.shape(), places, values, adds=True)
    dy, indices, _, padding, _ = map(value_of, of.gradient.args)
    return embedding_gradient(ctx, target, dy, indices, padding)


def _base(ctx: Lowering, of: Sum, other: Ref) -> Target:
    buffer, dtype = other.buffer, sums_dtype(ctx)
    if (
        of.root is not None
        and other.is_whole
        and buffer.storage == buffer.name
        and _dense(ctx, buffer.layout.strides)
    ):
        before: Target | None = ctx.scattered.get(of.root)
        if before is not None and (before.buffer is buffer or buffer.dtype != dtype):
            return before  # its sums, which `other` rounds
        writers: Sequence[Any] = [node for node in ctx.program.nodes if buffer.name in node.writes]
        if len(writers) == 1 and buffer.dtype == dtype:
            return Target(ctx, buffer, writers[0].name)
    return Target.filled(ctx, other.at, other.sizes, ctx.strides(), dtype)


def _dense(ctx: Lowering, strides: Sequence[Any]) -> bool:
    return tuple(strides) == tuple(ctx.strides())
