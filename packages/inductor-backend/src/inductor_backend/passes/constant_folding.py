"""Constant folding: evaluates subgraphs that depend on no graph input (masks, position tables)
once, at compile time.

Only on the CPU, for inference, without random numbers or mutation, and with static sizes. A chain
of cheap operators stays: the kernels that read it recompute it faster than they would load it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from inductor_backend.ir.ops import MEMORY_DTYPES
from inductor_backend.limits import MAX_FOLDED_ELEMENTS, MAX_FOLDED_ELEMENTS_OF_GRAPH
from inductor_backend.passes.constant_subgraph import VIEWS, made_of
from inductor_backend.passes.fx_edit import copy_of, makes_constants
from tracer_core.plugin_api import CompileSpec, Phase, Trait, has_effect, overloads_with

Node = torch.fx.Node


#: Operators that their readers' kernels recompute at next to no cost.
CHEAP = VIEWS | overloads_with(Trait.CHEAP)


def with_folded_constants(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy that reads the evaluated tensors as its constants."""
    if spec.phase is not Phase.INFERENCE or not _results(gm.graph):
        return gm
    copied = copy_of(gm)
    results = _results(copied.graph)
    values = computed(copied, results)
    if values is None:
        return gm
    for number, node in enumerate(results):
        value = values[node]
        if not alike(value, node.meta["val"]):
            return gm  # computed under a user's mode: leave the graph as it is
        name = f"known_{number}"
        node.replace_all_uses_with(insert_constant(copied, name, value, dict(node.meta)))
    erase_unread(copied.graph)
    return copied


def is_known(node: Node, known: dict[Node, bool]) -> bool:
    """Checks that a node is the same tensor in every call."""
    value = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(value, torch.Tensor):
        return node.op == "get_attr"
    if makes_constants(node):
        return value.device.type == "cpu"
    return (
        node.op == "call_function"
        and bool(node.all_input_nodes)
        and all(known[source] for source in node.all_input_nodes)
        and hasattr(node.target, "_schema")
        and not has_effect(node.target)
        and value.device.type == "cpu"
        and all(isinstance(size, int) for size in value.shape)
    )


def _results(graph: torch.fx.Graph) -> list[Node]:
    """Returns the nodes that the rest of the graph reads and that are worth storing."""
    known: dict[Node, bool] = {}
    dear: dict[Node, bool] = {}
    result, elements = [], 0
    for node in graph.nodes:
        known[node] = is_known(node, known)
        if not known[node] or node.op == "get_attr":
            dear[node] = False
            continue
        dear[node] = node.target not in CHEAP or any(
            dear[source] for source in node.all_input_nodes
        )
    for node, is_dear in dear.items():
        size = node.meta["val"].numel() if is_dear else 0
        # by loops, which copy what is returned
        held = is_dear and node.meta["val"].dtype in MEMORY_DTYPES
        if (
            held
            and node.target not in VIEWS
            and size <= MAX_FOLDED_ELEMENTS
            and _is_read(node, known)
        ):
            result.append(node)
            elements += size
    return result if elements <= MAX_FOLDED_ELEMENTS_OF_GRAPH else []


def _is_read(node: Node, known: dict[Node, bool]) -> bool:
    """Checks that a node outside the constants reads this one, directly or through views."""
    return any(
        not known[user] or (user.target in VIEWS and _is_read(user, known)) for user in node.users
    )


def computed(gm: torch.fx.GraphModule, results: list[Node]) -> dict[Node, Any] | None:
    """Evaluates these nodes; None where one of them raises, which the call is to do."""
    needed = made_of(results)
    values: dict[Node, Any] = {}
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
        for node in gm.graph.nodes:
            if node not in needed:
                continue
            if node.op == "get_attr":
                values[node] = operator.attrgetter(str(node.target))(gm)
                continue
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            try:
                values[node] = node.target(*args, **kwargs)
            except RuntimeError:
                return None
    return {node: _own(values[node]) for node in results}


def _own(value: Any) -> Any:
    """Clones the value, so that it shares no memory."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def alike(value: Any, fake: torch.Tensor) -> bool:
    """Checks that a value is a plain tensor, laid out as the graph says."""
    if type(value) is not torch.Tensor:
        return False
    return (value.shape, value.stride(), value.dtype) == (fake.shape, fake.stride(), fake.dtype)


def insert_constant(
    gm: torch.fx.GraphModule, name: str, value: torch.Tensor, meta: dict[str, Any]
) -> Node:
    """Adds a tensor to the module, and returns a node at the graph's beginning that reads it."""
    gm.register_buffer(name, value)
    with gm.graph.inserting_before(next(iter(gm.graph.nodes))):
        constant = gm.graph.get_attr(name)
    constant.meta = meta
    return constant


def erase_unread(graph: torch.fx.Graph) -> None:
    """Erases nodes that only served what is a constant now."""
    for node in reversed(list(graph.nodes)):
        removable = node.op == "get_attr" or (
            node.op == "call_function"
            and hasattr(node.target, "_schema")
            and not has_effect(node.target)
        )
        if removable and not node.users:
            graph.erase_node(node)
