"""Edits of an ATen graph: adds nodes with fake values (``meta["val"]``), and tracks which nodes
depend on constants alone.

A new node keeps the user's source line of the node that it replaces. A constant node computes the
same value whenever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch

from inductor_backend.ir.graph_meta import INSTANCE
from inductor_backend.kernels import packed_weights
from inductor_backend.kernels.packed_ops import OPERATORS, attention, geometry, lstm, pack_tiles
from inductor_backend.kernels.packed_ops import pack as pack_weight
from inductor_backend.kernels.quantized import quantized_mm
from inductor_backend.torch_private import lazy_graph_module
from tracer_core.plugin_api import Trait, has_effect, is_random, operators, spelled_with

aten = operators("aten")


def copy_node(
    graph: torch.fx.Graph, node: torch.fx.Node, to: Callable[[torch.fx.Node], torch.fx.Node]
) -> torch.fx.Node:
    """Does `Graph.node_copy` in half the time: torch searches the arguments of a new node for
    SymInts, to warn of them."""
    if node.op in ("placeholder", "output"):
        copied = graph.node_copy(node, to)
    else:
        copied = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
        copied.args = torch.fx.map_arg(node.args, to)
        if node.kwargs:
            copied.kwargs = torch.fx.map_arg(node.kwargs, to)
    copied.meta = dict(node.meta)
    return copied


def copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Copies the graph module, for edits."""
    graph = torch.fx.Graph()
    result: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        result[node] = copy_node(graph, node, result.__getitem__)
    copied: torch.fx.GraphModule = lazy_graph_module(gm, graph)
    return copied


class Editor:
    """Mutable: the graph, and the set of its constant nodes. constants: the placeholders among
    them."""

    def __init__(self, gm: torch.fx.GraphModule, constants: Collection[torch.fx.Node]) -> None:
        self.gm, self.graph = gm, gm.graph
        self.constant: set[torch.fx.Node] = set(constants)
        for node in self.graph.nodes:
            if self._is_constant(node):
                self.constant.add(node)

    def _is_constant(self, node: torch.fx.Node) -> bool:
        """Checks that the node reads constants only, and at least one. Symbolic scalars, random
        numbers, collectives and mutations are not constant."""
        if node.op != "call_function" or not node.all_input_nodes:
            return False
        return not has_effect(node.target) and all(
            source in self.constant or makes_constants(source) for source in node.all_input_nodes
        ) and any(source in self.constant for source in node.all_input_nodes)  # fmt: skip

    def is_constant(self, *nodes: Any) -> bool:
        """Checks that each is a constant node or None."""
        return all(node is None or node in self.constant for node in nodes)

    def call(self, like: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Inserts a new node before `like`, with its fake value."""
        with self.graph.inserting_before(like):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = {"user_frame": like.meta.get("user_frame", "?")}
        if INSTANCE in like.meta:  # it belongs to that instance, but to none of its offsets
            node.meta[INSTANCE] = (like.meta[INSTANCE][0], -1)
        node.meta["val"] = self._value(node, args, kwargs)
        if self._is_constant(node):
            self.constant.add(node)
        return node

    def before(self, like: torch.fx.Node) -> Callable[..., torch.fx.Node]:
        """Returns `call` with its first argument."""
        return partial(self.call, like)

    def _value(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        first = node.all_input_nodes[0].meta["val"]
        if isinstance(first, (tuple, list)):  # of several results, some may be None
            first = next(part for part in first if part is not None)
        values = torch.fx.map_arg((args, kwargs), lambda source: source.meta["val"])
        if node.target is pack_weight:
            return first.new_empty(packed_weights.packed_size(geometry(args[1])))
        if node.target is pack_tiles:
            return first.new_empty(packed_weights.tiles_size(*first.shape))
        if node.target is lstm:
            hidden = values[0][2]
            return first.new_empty((args[4] + 1) * hidden.shape[0] * hidden.shape[1])
        if node.target is attention:
            query, _, result = (operand for operand in values[0][:3])
            return result.new_empty((*query.shape[:3], result.shape[3]))
        if node.target is quantized_mm:
            return first.new_empty((first.shape[0], values[0][1].shape[1]))
        assert node.target not in OPERATORS
        with first.fake_mode:
            return node.target(*values[0], **values[1])  # type: ignore[operator]


_UNINITIALIZED = spelled_with(Trait.UNINITIALIZED)


def makes_constants(node: torch.fx.Node) -> bool:
    """Checks for a constant tensor of the graph, or an operator without node arguments whose result
    is the same in every call, such as ``full(...)``."""
    if node.op == "get_attr":
        return isinstance(node.meta.get("val"), torch.Tensor)
    if node.op != "call_function" or node.all_input_nodes:
        return False
    value = node.meta.get("val")
    uninitialized = getattr(node.target, "_opname", "") in _UNINITIALIZED
    known = isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)
    return known and not uninitialized and not is_random(node.target)
