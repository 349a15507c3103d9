"""Undoes the first call of a runner whose result is not what its graph promises, so that the graph
can run in eager mode in its place.

In: what the runner is given. Out: `FirstCall`, which restores the written inputs and the states of
the generators. What always holds: after `undo` the inputs have their old values, and the next run
draws the random numbers that the first one has drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import limits, torch_private
from tracer_core.aot.rng_saved import is_rng_node
from tracer_core.contract.specs import CompileSpec


def rng_states() -> list[torch.Tensor]:
    """Returns the states of the generators that graphs draw from."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states


def set_rng_states(states: Sequence[torch.Tensor]) -> None:
    """Restores `rng_states`."""
    torch.set_rng_state(states[0])
    for index, state in enumerate(states[1:]):
        torch.cuda.set_rng_state(state, index)


def can_be_undone(graph: torch.fx.Graph) -> bool:
    """Whether a second run of a functional graph has no effect but that of the first: it does not
    communicate with other processes."""
    return not any(torch_private.communicates(node.target) for node in graph.nodes)


@dataclass(frozen=True, slots=True)
class FirstCall:
    """What a first call may change. inputs: those given. copies: (input, its old values) of the
    inputs written to. rng: of torch's generators, empty where the graph draws nothing. generators:
    (generator given as an input, state)."""

    inputs: tuple[Any, ...]
    copies: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    rng: tuple[torch.Tensor, ...]
    generators: tuple[tuple[torch.Generator, torch.Tensor], ...]

    @classmethod
    def of(cls, inputs: Iterable[Any], spec: CompileSpec, uses_rng: bool) -> FirstCall | None:
        """Copies what the graph may change; None where that is too large, or no plain memory."""
        items = tuple(inputs)
        written = [items[index] for index in spec.mutations]
        if sum(item.nbytes for item in written) > limits.MAX_FIRST_CALL_COPIES:
            return None
        if any(item.layout is not torch.strided for item in written):
            return None
        generators = [item for item in items if isinstance(item, torch.Generator)]
        return cls(
            items,
            tuple((item, _memory(item).clone()) for item in written),
            tuple(rng_states()) if uses_rng else (),
            tuple((generator, generator.get_state()) for generator in generators),
        )

    def undo(self) -> list[Any]:
        """Restores everything; returns the inputs for another run."""
        for tensor, copy in self.copies:
            _memory(tensor).copy_(copy)
        if self.rng:
            set_rng_states(self.rng)
        for generator, state in self.generators:
            generator.set_state(state)
        return list(self.inputs)


def uses_rng(graph: torch.fx.Graph) -> bool:
    """Whether an operator of the graph uses rng."""
    return any(node.op == "call_function" and is_rng_node(node) for node in graph.nodes)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view without gradients and without repeated memory: torch refuses to write to
    expanded tensors."""
    data = tensor.data
    for dim, (size, stride) in enumerate(zip(data.shape, data.stride(), strict=True)):
        if stride == 0 and size > 1:
            data = data.narrow(dim, 0, 1)
    return data
