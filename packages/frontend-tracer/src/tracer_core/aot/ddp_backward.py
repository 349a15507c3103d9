"""Runs a compiled backward as several autograd nodes, one per bucket of DistributedDataParallel.

For each DistributedDataParallel that calls the graph there is a chain of autograd nodes. The node
that returns the outputs runs the first subgraph of the backward. Before the next node runs,
autograd accumulates the gradients of the first, and DistributedDataParallel starts to communicate
them.

The gradients equal those of the whole backward. The values passed between subgraphs belong to one
run of the backward, so two threads, ``retain_graph`` and a backward that needs only some gradients
work.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.ambient_modes import uncast
from tracer_core.aot.autograd_node import AutogradStep, Backward, Run
from tracer_core.aot.ddp_buckets import Part, split, wanted_parts
from tracer_core.contract.runner import RunFunction
from tracer_core.errors import TracerError

#: Attribute of a token's gradient: what one run of the backward passes from a subgraph to the next.
RUN = "_tracer_run"


class Replicas:
    """The chains of one graph. Mutable: a chain is made at the first call by a
    DistributedDataParallel.
    """

    def __init__(self, name: str, step: AutogradStep, full: Callable[..., Any]) -> None:
        """whole(args, *leaves): the graph as one autograd node."""
        self.name, self.step, self.full = name, step, full
        self._chains: weakref.WeakKeyDictionary[Any, Callable[..., Sequence[Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def run(self, replica: Any, args: list[Any], leaves: Sequence[torch.Tensor]) -> Sequence[Any]:
        """Returns the graph's outputs.

        replica: the DistributedDataParallel whose forward calls the graph.
        """
        chain = self._chains.get(replica)
        if chain is None:
            chain = self._chains[replica] = self._chain(replica, leaves)
        return chain(args, *leaves)

    def _chain(self, replica: Any, leaves: Sequence[torch.Tensor]) -> Callable[..., Sequence[Any]]:
        full = self.step.full
        graph, _ = full.in_parts()
        parts = split(graph, wanted_parts(graph, full.gradients, leaves, replica))
        if len(parts) < 2:
            return self.full
        parts = [replace(part, number=number) for number, part in enumerate(parts)]
        return chain(self.name, self.step, Subgraphs(self.step, parts))


class Subgraphs:
    """The subgraphs of one graph's backwards that a chain runs. Mutable: those of a backward for
    some tangents only are made when it first runs.

    members: the leaves whose gradients each link of the chain gives, by the subgraphs of the whole
    backward.
    """

    def __init__(self, step: AutogradStep, parts: Sequence[Part]) -> None:
        self.device = step.device
        self.members = _members(parts, step.full.gradients)
        self._of = {step.full: self._compiled(step.full, parts)}

    def of(self, backward: Backward) -> list[tuple[int, Part, RunFunction]]:
        """Returns (link of the chain, subgraph, runner) of each subgraph."""
        result = self._of.get(backward)
        if result is None:
            graph, _ = backward.in_parts()
            (output,) = graph.find_nodes(op="output")
            wanted = [len(self.members)] * len(output.args[0])
            for number, leaves in enumerate(self.members):
                for g in (backward.gradients[leaf] for leaf in leaves):
                    if g is not None and g >= 0:
                        wanted[g] = min(wanted[g], number)
            result = self._of[backward] = self._compiled(backward, split(graph, wanted))
        return list(result)

    def _compiled(
        self, backward: Backward, parts: Sequence[Part]
    ) -> list[tuple[int, Part, RunFunction]]:
        _, compile_part = backward.in_parts()
        compiled = (uncast(self.device, compile_part(part, part.number)) for part in parts)
        return [(part.number, part, run) for part, run in zip(parts, compiled, strict=True)]


def _members(parts: Sequence[Part], gradients: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Returns the leaves of each subgraph; gradients that need no operator come first."""
    giver = {output: number for number, part in enumerate(parts) for output in part.gives}
    members: list[list[int]] = [[] for _ in parts]
    for leaf, index in enumerate(gradients):
        members[giver[index] if index is not None and index >= 0 else 0].append(leaf)
    return [tuple(member) for member in members]


def chain(name: str, step: AutogradStep, subgraphs: Subgraphs) -> Callable[..., Any]:
    """Returns run(args, *leaves) for a graph whose backward runs as subgraphs."""
    device, members = step.device, subgraphs.members
    last = len(members) - 1

    def gradients(number: int, run: Run) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """Returns (the gradient of the next subgraph's token, the leaves' gradients)."""
        run.until(number)
        result = run.of(members[number])
        if number == last:
            return None, result
        token = torch.empty(0, device=device)
        setattr(token, RUN, run)
        return token, result

    class FirstPart(torch.autograd.Function):
        forward = staticmethod(step.forward)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            run = step.opened(ctx, tangents)
            if run.backward is not None:
                run.left = subgraphs.of(run.backward)
            token, result = gradients(0, run)
            return (None, token, *result)

    class LaterPart(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, number: int, token: torch.Tensor | None, *leaves: torch.Tensor
        ) -> Any:
            """Returns an empty token, whose gradient carries the run from the subgraph before."""
            ctx.number = number
            ctx.set_materialize_grads(False)
            return torch.empty(0, device=device)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            run = getattr(tangents[0], RUN, None)
            if run is None:
                raise TracerError(
                    f"{name}: a part of the backward has lost what the part before it has made"
                )
            token, result = gradients(ctx.number, run)
            return (None, token, *result)

    for number, cls in enumerate((FirstPart, LaterPart)):
        cls.__name__ = cls.__qualname__ = f"Compiled_{name}_part_{number}"
    first, later = torch_private.direct_apply(FirstPart), torch_private.direct_apply(LaterPart)
    links = [(number, members[number]) for number in range(last, 0, -1)]
    own = members[0]

    def run(args: list[Any], *leaves: torch.Tensor) -> Any:
        token = None
        for number, indices in links:
            token = later(number, token, *[leaves[index] for index in indices])
        return first(args, token, *[leaves[index] for index in own])

    return run
