"""`CapturedGraph`: the torch-level graph that capture hands to
`tracer_core.dispatch.compile_graph`.

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
    """One captured graph with what lowering and backends need to know about it.

    gm: the torch-level graph. inputs: one InputSpec per placeholder. real_inputs: the tensors (and
    ints) of the captured call. needs_grad: grad mode was on in at least a part of the graph, and an
    output requires grad. name: ``graph_0``. phase: INFERENCE until the graph is lowered for
    training. gradients: indices of the outputs that become the ``.grad`` of a tensor.
    written_later: indices of the inputs that are written to after the graph, before its backward
    runs: a backward reads copies of them. grad_off: it is a part of a graph, in which grad mode is
    off.
    """

    gm: torch.fx.GraphModule
    inputs: tuple[InputSpec, ...]
    real_inputs: tuple[Any, ...]
    needs_grad: bool
    name: str
    phase: Phase = Phase.INFERENCE
    gradients: frozenset[int] = frozenset()
    written_later: frozenset[int] = frozenset()
    grad_off: bool = False

    def copied(self) -> CapturedGraph:
        """Returns it with a copy of the graph, which whoever compiles it may change."""
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(self.gm.graph, {}))
        return replace(self, gm=torch.fx.GraphModule(self.gm, graph))

    def described(self) -> CapturedGraph:
        """Returns it with fakes in place of the call's tensors, for code that outlives the call."""
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        values = zip(placeholders, self.real_inputs, strict=True)
        return replace(
            self,
            real_inputs=tuple(
                node.meta.get("val") if isinstance(value, torch.Tensor) else value
                for node, value in values
            ),
        )
