"""Normalizes graphs that begin with grad mode off and switch it on, such as enable_grad inside
no_grad.

Lowering differentiates one form only: a graph that is called with grad mode on and switches it off
itself as its first step. Operators before the switch record nothing for autograd, those after it
do. Each call of a compiled graph begins with the grad mode in which the graph was compiled.
"""

from __future__ import annotations

import torch

from tracer_core.aot.functionalization import SET_GRAD_CALLS
from tracer_core.aot.joint_graph import calls_autograd
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.torch_private.needed import set_grad_mode


def grad_is_on_in(graph: torch.fx.Graph) -> bool:
    """Whether grad mode is on in some part of a graph that is called with grad mode as it is
    now.
    """
    return torch.is_grad_enabled() or True in _switched(graph)


def ending(graph: torch.fx.Graph) -> bool:
    """Returns the grad mode at the end of the graph, if it begins with grad mode as it is now."""
    return [torch.is_grad_enabled(), *_switched(graph)][-1]


def _switched(graph: torch.fx.Graph) -> list[bool]:
    """Returns the values that the graph sets grad mode to, in order."""
    calls = (
        node for node in graph.nodes if node.op == "call_function" and node.target in SET_GRAD_CALLS
    )
    return [bool(value) for node in calls for value in (*node.args, *node.kwargs.values())]


def begins_off(captured: CapturedGraph) -> bool:
    """Whether gradients are computed for a graph that is called with grad mode off, or inside such
    a graph.
    """
    return not torch.is_grad_enabled() and (captured.needs_grad or calls_autograd(captured.gm))


def switch_off_first(captured: CapturedGraph) -> None:
    """Makes the graph callable with grad mode on: switches it off before the first operator."""
    graph = captured.gm.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        node = graph.call_function(set_grad_mode, (False,))
    node.meta.update(val=None, user_frame="")
    captured.gm.recompile()
