"""Sets the few operators apart that depend on symbolic sizes, where all others have static ones.

Generation appends a token to its text in each call: every call has other sizes, though all but a few
operators are about the last token alone. These few run as captured, those that lead to the others
first and all that do not last, while a GPU already works on the rest (`UnbackedSplit` connects the
parts). The rest is one graph of static sizes: compiled once by a backend that takes no others, and one
CUDA graph for all sizes.
"""

from __future__ import annotations

import torch

from tracer_core.aot.symbolic_sizes import free_symbols
from tracer_core.aot.unbacked_split import requires_grad
from tracer_core.aot.writes_across_parts import memory_of
from tracer_core.contract.captured_graph import MARK, CapturedGraph
from tracer_core.ops.calls import takes_random
from tracer_core.torch_private.needed import set_grad_mode

#: An operator of a size may be set apart for so many other operators.
_OPERATORS_PER_SIZED = 8


def with_sized_apart(captured: CapturedGraph) -> CapturedGraph | None:
    """Returns a copy of a graph without gradients whose operators of symbolic sizes are marked (`MARK`)
    and stand before or behind all others; None where there are many, or where the order matters."""
    result = captured.copied()
    graph = result.gm.graph
    calls = [
        node
        for node in graph.nodes
        if node.op in ("call_function", "call_method") and node.target is not set_grad_mode
    ]
    behind: set[torch.fx.Node] = set()
    others: set[torch.fx.Node] = set()
    apart: list[torch.fx.Node] = []
    for node in calls:
        sources = node.all_input_nodes
        follows = not behind.isdisjoint(sources)
        if not follows and not any(free_symbols(n.meta.get("val")) for n in (node, *sources)):
            others.add(node)
            continue
        apart.append(node)
        if follows or not others.isdisjoint(sources):
            behind.add(node)
    leading: set[torch.fx.Node] = set()
    for node in reversed(apart):
        if not (others.isdisjoint(node.users) and leading.isdisjoint(node.users)):
            leading.add(node)
    if any(map(requires_grad, calls)):
        return None
    tensors = [node for node in apart if isinstance(node.meta.get("val"), torch.Tensor)]
    if not tensors or len(tensors) * _OPERATORS_PER_SIZED > len(others):
        return None
    written = {memory for node in calls for memory in node.meta.get("writes", ())}
    if any(_depends_on_order(node, written) for node in apart):
        return None
    for node in graph.find_nodes(op="call_function", target=set_grad_mode):
        graph.erase_node(node)  # nothing has gradients: it would only cut the rest
    (output,) = graph.find_nodes(op="output")
    place = graph.find_nodes(op="placeholder")[-1]
    for node in apart:
        node.meta[MARK] = True
        if node in leading:
            place.append(node)
            place = node
        else:
            output.prepend(node)
    return result


def _depends_on_order(node: torch.fx.Node, written: set[int | None]) -> bool:
    """Returns whether an operator may not move: it uses random numbers, writes, reads what is written
    to, or has one of several results."""
    if takes_random(node) or node.meta.get("writes") or node.meta.get("val") is None:
        return True
    values = [item.meta.get("val") for item in (node, *node.all_input_nodes)]
    several = any(isinstance(value, (tuple, list)) for value in values)
    return several or not written.isdisjoint({memory_of(value) for value in values} - {None})
