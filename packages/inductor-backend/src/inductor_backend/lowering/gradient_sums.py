"""Adds the gradient of an embedding to another gradient in place, row by row.

This is for a weight that is both looked up and multiplied with (tied embeddings of BERT and GPT-2):
it avoids a zero-filled tensor of the weight's size (300 MB for GPT-2) that is scattered into and
added. The other gradient's memory is written to only where a matmul or another such sum made it and
nothing else reads it; otherwise it is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.views import Ref
from inductor_backend.lowering.context import Lowering, aten
from inductor_backend.lowering.scatter import Target, embedding_gradient
from tracer_core.plugin_api import Trait, overloads_with

#: Operators whose result has memory of its own (as has an in-place sum).
FRESH = frozenset({aten.mm.default, aten.addmm.default, aten.embedding_dense_backward.default})

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
    same = all(v.shape == values[0].shape and v.dtype == values[0].dtype for v in values)
    return same and gradient.args[4] is False and values[0].dtype in (torch.float32, torch.float64)


def add_to(ctx: Lowering, of: Sum, value_of: Callable[[Any], Any]) -> Ref:
    """Lowers the sum."""
    dy, indices, _, padding, _ = map(value_of, of.gradient.args)
    target = _base(ctx, of, value_of(of.other))
    return embedding_gradient(ctx, target, dy, indices, padding)


def _base(ctx: Lowering, of: Sum, other: Ref) -> Target:
    buffer = other.buffer
    if (
        of.root is not None
        and other.is_whole
        and buffer.storage == buffer.name
        and _dense(ctx, buffer.layout.strides)
    ):
        before: Target | None = ctx.scattered.get(of.root)
        if before is not None and before.buffer is buffer:
            return before
        writers: Sequence[Any] = [node for node in ctx.program.nodes if buffer.name in node.writes]
        if len(writers) == 1:
            return Target(ctx, buffer, writers[0].name)
    return Target.filled(ctx, other.at, other.sizes, ctx.strides(), ctx.meta().dtype)


def _dense(ctx: Lowering, strides: Sequence[Any]) -> bool:
    return tuple(strides) == tuple(ctx.strides())
