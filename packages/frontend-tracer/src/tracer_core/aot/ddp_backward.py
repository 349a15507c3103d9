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
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.ddp_buckets import Part, cut, wanted_parts
from tracer_core.contract.runner import RunFunction
from tracer_core.errors import TracerError

#: Attribute of a token's gradient: what one run of the backward passes from a subgraph to the next.
RUN = "_tracer_run"


@dataclass(frozen=True, slots=True)
class Step:
    """What the autograd node of a graph does.

    forward(ctx, args, *leaves): runs the forward graph. opened(ctx, tangents): (where each leaf's
    gradient is found, tangents as the backward takes them, the backward's inputs). again(ctx,
    tangents): differentiable gradients. of_given(ctx, tangents): gradients of the outputs that got
    one alone, None where the graph cannot run again. device: of the graph.
    """

    forward: Callable[..., Any]
    opened: Callable[[Any, Any], Any]
    again: Callable[[Any, Any], Sequence[torch.Tensor | None]]
    of_given: Callable[[Any, Any], Sequence[torch.Tensor | None] | None]
    device: torch.device


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward graph and its compiler.

    graph: the whole backward graph. gradients: for each leaf the index of its gradient among the
    outputs (``~i`` for tangent i, None for no gradient). compile(part, number): returns a runner
    for a subgraph.
    """

    graph: torch.fx.Graph
    gradients: tuple[int | None, ...]
    compile: Callable[[Part, int], RunFunction]


def uncast(device: torch.device, run: RunFunction) -> RunFunction:
    """Wraps `run` so that an ambient autocast does not cast again."""
    kind = device.type

    def without_autocast(inputs: list[Any]) -> Sequence[Any]:
        if not torch.is_autocast_enabled(kind):
            return run(inputs)
        with torch_private.autocast_off():
            return run(inputs)

    return without_autocast


class Replicas:
    """The chains of one graph. Mutable: a chain is made at the first call by a
    DistributedDataParallel.
    """

    def __init__(
        self, name: str, step: Step, backward: Backward, whole: Callable[..., Any]
    ) -> None:
        """whole(args, *leaves): the graph as one autograd node."""
        self.name, self.step, self.backward, self.whole = name, step, backward, whole
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
        backward = self.backward
        wanted = wanted_parts(backward.graph, backward.gradients, leaves, replica)
        parts = cut(backward.graph, wanted)
        if len(parts) < 2:
            return self.whole
        runners = [backward.compile(part, number) for number, part in enumerate(parts)]
        return chain(self.name, self.step, parts, runners, _members(parts, backward.gradients))


def _members(parts: Sequence[Part], gradients: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Returns the leaves of each subgraph; gradients that need no operator come first."""
    giver = {output: number for number, part in enumerate(parts) for output in part.gives}
    members: list[list[int]] = [[] for _ in parts]
    for leaf, index in enumerate(gradients):
        members[giver[index] if index is not None and index >= 0 else 0].append(leaf)
    return [tuple(one) for one in members]


class _Run:
    """One run of the backward. Mutable.

    values: the inputs of the whole graph, then what subgraphs computed for later ones; freed after
    the last reader.
    """

    __slots__ = ("fitted", "gradients", "ready", "values")

    def __init__(
        self, gradients: Sequence[int | None], fitted: Sequence[Any], values: list[Any]
    ) -> None:
        self.gradients, self.fitted, self.values = gradients, fitted, values
        self.ready: Sequence[torch.Tensor | None] | None = None

    def gradients_of(
        self, part: Part, runner: RunFunction, leaves: Sequence[int]
    ) -> list[torch.Tensor | None]:
        """Runs a subgraph, or picks gradients that exist already."""
        if self.ready is not None:
            return [self.ready[leaf] for leaf in leaves]
        values = self.values
        out = list(runner([values[at] for at in part.takes]))
        count = len(part.gives)
        values += out[count:]
        for at in part.done:
            values[at] = None
        found = dict(zip(part.gives, out, strict=False))
        places = [self.gradients[leaf] for leaf in leaves]
        return [None if g is None else found[g] if g >= 0 else self.fitted[~g] for g in places]


def chain(
    name: str,
    step: Step,
    parts: Sequence[Part],
    runners: Sequence[RunFunction],
    members: Sequence[Sequence[int]],
) -> Callable[..., Any]:
    """Returns run(args, *leaves) for a graph whose backward runs as subgraphs.

    members: the leaves whose gradients each subgraph gives.
    """
    device, last = step.device, len(parts) - 1
    runners = [uncast(device, runner) for runner in runners]

    def gradients(number: int, run: _Run) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """Returns (the gradient of the next subgraph's token, the leaves' gradients)."""
        found = run.gradients_of(parts[number], runners[number], members[number])
        if number == last:
            return None, found
        token = torch.empty(0, device=device)
        setattr(token, RUN, run)
        return token, found

    class FirstPart(torch.autograd.Function):
        forward = staticmethod(step.forward)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            if torch.is_grad_enabled():
                run = _Run((), (), [])
                run.ready = step.again(ctx, tangents)
            else:
                run = _Run(*step.opened(ctx, tangents))
            token, found = gradients(0, run)
            return (None, token, *found)

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
            token, found = gradients(ctx.number, run)
            return (None, token, *found)

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
