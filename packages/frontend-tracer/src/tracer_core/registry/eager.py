"""The built-in backends ``eager`` and ``aten_eager``: run a graph with PyTorch's own operators.

They optimize nothing. They show what capture (and lowering) alone cost, and tell a wrong capture
from a wrong backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracer_core.contract.backend import Backend
from tracer_core.contract.runner import RunFunction, Runner
from tracer_core.contract.specs import CompileSpec, Training

if TYPE_CHECKING:
    import torch

#: Every accelerator that PyTorch itself runs on.
DEVICES = frozenset({"cpu", "cuda", "mps", "xpu", "hpu", "mtia", "privateuseone", "meta"})


def graph_function(graph: torch.fx.GraphModule) -> RunFunction:
    """Returns the graph's generated Python code as a function of one list."""
    forward = graph.forward

    def run(inputs: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = forward(*inputs)
        return outputs

    return run


def compile_eager(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Returns a runner that calls the graph's generated Python code."""
    # the copies to inputs stand at the graph's end
    early = frozenset[int]() if spec.mutations else None
    return Runner(graph_function(graph), mutated_on_error=early)


@dataclass(frozen=True, slots=True)
class AtenEagerOptions:
    """Options of the eager ATen backend. Raises ValueError for a budget outside of 0 to 1."""

    #: For training, the fraction (0 to 1) of the activations' bytes that may be saved from the
    #: forward to the backward; the backward recomputes the rest.
    memory_budget: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget={self.memory_budget!r}: from 0 to 1")


#: Shows what lowering and training capture alone cost, and tells a wrong lowering from a wrong
#: backend.
ATEN_EAGER = Backend(
    name="aten_eager",
    compile=compile_eager,
    description="the graph lowered to ATen, forward and backward, run by PyTorch's own operators",
    ir="aten",
    training=Training.FORWARD_BACKWARD,
    modes={"default": "runs the lowered graph"},
    options=AtenEagerOptions,
    shapes="symbolic",
    numbers="inputs",
    data_sizes="symbols",
    devices=DEVICES,
)

EAGER = Backend(
    name="eager",
    compile=compile_eager,
    description="the captured graph, run by PyTorch's own operators",
    ir="torch",
    training=Training.FORWARD_BACKWARD,
    modes={"default": "runs the graph as captured"},
    shapes="symbolic",
    data_sizes="symbols",
    devices=DEVICES,
)
