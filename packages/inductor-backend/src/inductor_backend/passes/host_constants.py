"""Host constants: tensors that a graph of a CUDA device computes on the CPU from nothing but numbers
(``torch.arange(n)[:, None] - torch.arange(m)``), and with which it indexes tensors of the device.

Left alone, they cut the graph, and each call computes them and copies them to the device. They are
evaluated once, at compile time, and lie on the device. Indices alone are read so: any other operator
of the device refuses operands of another one that have dimensions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from inductor_backend.ir.graph_meta import copies_across
from inductor_backend.ir.target import main_device
from inductor_backend.limits import MAX_FOLDED_ELEMENTS, MAX_FOLDED_ELEMENTS_OF_GRAPH
from inductor_backend.passes.constant_folding import (
    alike,
    computed,
    erase_unread,
    insert_constant,
    is_known,
)
from inductor_backend.passes.fx_edit import copy_of
from tracer_core.plugin_api import CompileSpec, operators

aten = operators("aten")

Node = torch.fx.Node

#: Operators of which an operand on the CPU may index one on a device.
_INDEXING = frozenset({aten.index.Tensor, aten._unsafe_index.Tensor})


def host_constants(graph: torch.fx.Graph) -> frozenset[Node]:
    """Returns the nodes that make host constants, which their readers take from the device."""
    if main_device(graph).type == "cpu":
        return frozenset()
    known: dict[Node, bool] = {}
    for node in graph.nodes:
        known[node] = is_known(node, known)
    host = {node for node in known if known[node] and node.op == "call_function"}
    for node in reversed(graph.nodes):
        if node in host and not all(
            user in host or user.op == "output" or node in _read_as_index(user)
            for user in node.users
        ):
            host.discard(node)
    sizes = [node.meta["val"].numel() for node in _read_by_device(graph, host)]
    fit = (
        max(sizes, default=0) <= MAX_FOLDED_ELEMENTS and sum(sizes) <= MAX_FOLDED_ELEMENTS_OF_GRAPH
    )
    return frozenset(host) if fit else frozenset()


def _read_by_device(graph: torch.fx.Graph, host: Collection[Node]) -> list[Node]:
    return [
        node
        for node in graph.nodes
        if node in host and any(node in _read_as_index(user) for user in node.users)
    ]


def _read_as_index(user: Node) -> list[Node]:
    """Returns the operands that a node reads wherever they lie."""
    if copies_across(user):
        return user.all_input_nodes
    indices: Any = user.args[1] if user.target in _INDEXING else ()
    return [node for node in indices if node is not None]


def with_constants_on_device(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy that reads its host constants as tensors of its device."""
    if not host_constants(gm.graph):
        return gm
    copied = copy_of(gm)
    device, host = main_device(copied.graph), host_constants(copied.graph)
    results = _read_by_device(copied.graph, host)
    values = computed(copied, results)
    if values is None or not all(alike(values[node], node.meta["val"]) for node in results):
        return gm
    for number, node in enumerate(results):
        name = f"host_constant_{number}"
        value = _on_device(values[node], device)
        with node.meta["val"].fake_mode:
            fake = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device
            )
        constant = insert_constant(copied, name, value, {**node.meta, "val": fake})
        for user in list(node.users):
            if user not in host and user.op != "output":
                user.replace_input_with(node, constant)
    erase_unread(copied.graph)
    return copied


def _on_device(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    return value.to(device)
