"""A captured graph, as the tracer hands it to `tracer_core.dispatch.compile_graph`.

In: what the recorder saw. Out: what lowering and backends need. The graph is at torch level: its
placeholders are `inputs` in order, its output node returns one flat tuple of tensors and SymInts,
every node has ``meta["val"]`` (fake tensor or SymInt) and ``meta["user_frame"]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracer_core.contract.specs import InputSpec, Phase

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """gm: the torch-level graph. inputs: one InputSpec a placeholder. real_inputs: the tensors (and
    ints) of the call that was captured. needs_grad: grad mode was on, at first or in a part of the
    graph, and an output requires grad. name: ``graph_0``. phase: INFERENCE until training is
    captured."""

    gm: torch.fx.GraphModule
    inputs: tuple[InputSpec, ...]
    real_inputs: tuple[Any, ...]
    needs_grad: bool
    name: str
    phase: Phase = Phase.INFERENCE
