"""`CapturedGraph`: the torch-level graph that `tracer_core.dispatch.compile_graph` compiles.

The graph's placeholders are `inputs` in order, its output node returns one flat tuple of tensors
and SymInts, and every node has ``meta["val"]`` (fake tensor or SymInt) and ``meta["user_frame"]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core.contract.specs import InputSpec, Phase

#: In a node's ``meta``: the node makes or checks a data-dependent size (or number), or it seeds or
#: reads a random number generator and keeps its place in the order (`ORDERED`), or it has no
#: functional form and runs eagerly in its place (`APART`).
MARK = "data_size"
ORDERED = "ordered"
APART = "apart"


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """One captured graph with what lowering and backends need to know about it."""

    #: The torch-level graph.
    gm: torch.fx.GraphModule
    #: One per placeholder.
    inputs: tuple[InputSpec, ...]
    #: The tensors (and ints) of the captured call.
    real_inputs: tuple[Any, ...]
    #: Whether grad mode was on in at least a part of the graph and an output requires grad.
    needs_grad: bool
    #: A short name for dumps and messages (``graph_0``).
    name: str
    #: `Phase.INFERENCE` until the graph is lowered for training.
    phase: Phase = Phase.INFERENCE
    #: Indices of the outputs that become the ``.grad`` of a tensor.
    gradients: frozenset[int] = frozenset()
    #: Indices of the inputs that the program writes to after the graph and before its backward:
    #: the backward reads copies of them.
    written_later: frozenset[int] = frozenset()
    #: Whether it is a part of a graph in which grad mode is off.
    grad_off: bool = False

    def copied(self) -> CapturedGraph:
        """Returns a copy whose graph may be changed."""
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(self.gm.graph, {}))
        return replace(self, gm=torch.fx.GraphModule(self.gm, graph))

    def described(self) -> CapturedGraph:
        """Returns a copy with fakes in place of the call's tensors, for code that outlives the call."""
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        values = zip(placeholders, self.real_inputs, strict=True)
        return replace(
            self,
            real_inputs=tuple(
                node.meta.get("val") if isinstance(value, torch.Tensor) else value
                for node, value in values
            ),
        )
