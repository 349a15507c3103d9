"""Alias analysis of a functional graph: which node allocated the memory of a value.

The owner of a storage is the first node whose value lies in it; a value that is not a strided
tensor owns itself. `clone` copies a value into memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

import torch

from tracer_core import torch_private
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node


def _strided(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


class Owners:
    """The owners in one graph."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._order: dict[Node, int] = {}
        self._first: dict[int, Node] = {}
        for at, node in enumerate(nodes):
            self._order[node] = at
            value = node.meta.get("val")
            if _strided(value):
                self._first.setdefault(torch_private.storage_id(value), node)

    def of(self, node: Node) -> Node:
        """Returns the node that allocated the memory of a node's value."""
        value = node.meta.get("val")
        return self._first[torch_private.storage_id(value)] if _strided(value) else node

    def is_view(self, node: Node) -> bool:
        """Whether all results of a node lie in the memory of earlier nodes."""
        value = node.meta.get("val")
        tensors = [
            item
            for item in (value if isinstance(value, (tuple, list)) else [value])
            if _strided(item)
        ]
        at = self._order[node]
        return bool(tensors) and all(
            self._order[self._first[torch_private.storage_id(tensor)]] < at for tensor in tensors
        )


def subgraph(
    sources: Iterable[Node], nodes: Iterable[Node]
) -> tuple[torch.fx.Graph, dict[Node, Node]]:
    """Returns a graph of these nodes without an output, whose inputs are `sources`, and the copy of
    each node.
    """
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for source in sources:
        copies[source] = graph.placeholder(source.name)
        copies[source].meta = dict(source.meta)
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return graph, copies


class NodeWriter:
    """Appends operators with their fake values to a graph. origin: the node that they are for."""

    def __init__(self, graph: torch.fx.Graph, origin: Node) -> None:
        self.graph, self.origin = graph, origin
        self._mode = torch_private.fake_mode_of(origin.meta["val"])

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
        with self._mode:
            return self.node(target, args, kwargs, target(*values, **kwargs))

    def node(self, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
        """Appends an operator whose fake value is known."""
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(val=value, user_frame=self.origin.meta.get("user_frame", ""))
        return node


def clone(graph: torch.fx.Graph, value: Node) -> Node:
    """Adds a node at the end of the graph that copies a value."""
    return NodeWriter(graph, value)(aten.clone.default, value)
