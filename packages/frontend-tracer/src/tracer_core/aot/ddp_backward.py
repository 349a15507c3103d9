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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.ddp_buckets import Part, cut, wanted_parts
from tracer_core.contract.runner import RunFunction
from tracer_core.errors import TracerError

#: Attribute of a token's gradient: what one run of the backward passes from a subgraph to the next.
RUN = "_tracer_run"


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """One backward graph of a captured graph, and its compiler.

    tangents: the outputs (indices) that have a tangent. gradients: for each leaf the index of its
    gradient among the outputs of the graph (``~i`` for the i-th tangent, None for no gradient).
    run: runs the whole graph. compile(part, number): returns a runner for a subgraph.
    """

    graph: torch.fx.Graph
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    run: RunFunction
    compile: Callable[[Part, int], RunFunction]


class Run:
    """One run of a backward. Mutable.

    ready: the leaves' gradients, where they are known without `backward`. fitted: the tangents as
    the graph takes them. values: the graph's inputs, then what subgraphs computed for later ones;
    freed after the last reader. found: the graph's outputs. left: the subgraphs that have not run.
    """

    __slots__ = ("backward", "fitted", "found", "left", "ready", "values")

    def __init__(
        self,
        backward: Backward | None,
        fitted: Sequence[Any],
        values: list[Any],
        ready: Sequence[torch.Tensor | None] | None = None,
    ) -> None:
        self.backward, self.fitted, self.values, self.ready = backward, fitted, values, ready
        self.found: dict[int, torch.Tensor] | Sequence[torch.Tensor] = {}
        self.left: list[tuple[int, Part, RunFunction]] = []

    def whole(self) -> list[torch.Tensor | None]:
        """Runs the whole graph; returns the gradient of each leaf."""
        if self.backward is not None:
            self.found = self.backward.run(self.values)
            return self.of(range(len(self.backward.gradients)))
        assert self.ready is not None
        return list(self.ready)

    def until(self, number: int) -> None:
        """Runs the subgraphs up to this one."""
        while self.left and self.left[0][0] <= number:
            _, part, runner = self.left.pop(0)
            out = list(runner([self.values[at] for at in part.takes]))
            self.values += out[len(part.gives) :]
            for at in part.done:
                self.values[at] = None
            self.found |= dict(zip(part.gives, out, strict=False))  # type: ignore[operator]

    def of(self, leaves: Iterable[int]) -> list[torch.Tensor | None]:
        """Returns the gradients of these leaves, which were computed."""
        if self.backward is None:
            assert self.ready is not None
            return [self.ready[leaf] for leaf in leaves]
        found, fitted, gradients = self.found, self.fitted, self.backward.gradients
        places = [gradients[leaf] for leaf in leaves]
        return [None if g is None else found[g] if g >= 0 else fitted[~g] for g in places]


@dataclass(frozen=True, slots=True)
class Step:
    """What the autograd node of a graph does.

    forward(ctx, args, *leaves): runs the forward graph. opened(ctx, tangents): begins a run of the
    backward for the tangents that are there. whole: the backward for all tangents. device: of the
    graph.
    """

    forward: Callable[..., Any]
    opened: Callable[[Any, Any], Run]
    whole: Backward
    device: torch.device


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

    def __init__(self, name: str, step: Step, whole: Callable[..., Any]) -> None:
        """whole(args, *leaves): the graph as one autograd node."""
        self.name, self.step, self.whole = name, step, whole
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
        whole = self.step.whole
        wanted = wanted_parts(whole.graph, whole.gradients, leaves, replica)
        parts = cut(whole.graph, wanted)
        if len(parts) < 2:
            return self.whole
        parts = [replace(part, number=number) for number, part in enumerate(parts)]
        return chain(self.name, self.step, Subgraphs(self.step, parts))


class Subgraphs:
    """The subgraphs of one graph's backwards that a chain runs. Mutable: those of a backward for
    some tangents only are made when it first runs.

    members: the leaves whose gradients each link of the chain gives, by the subgraphs of the whole
    backward.
    """

    def __init__(self, step: Step, parts: Sequence[Part]) -> None:
        self.device = step.device
        self.members = _members(parts, step.whole.gradients)
        self._of = {step.whole: self._compiled(step.whole, parts)}

    def of(self, backward: Backward) -> list[tuple[int, Part, RunFunction]]:
        """Returns (link of the chain, subgraph, runner) of each subgraph."""
        found = self._of.get(backward)
        if found is None:
            (output,) = backward.graph.find_nodes(op="output")
            wanted = [len(self.members)] * len(output.args[0])
            for number, leaves in enumerate(self.members):
                for g in (backward.gradients[leaf] for leaf in leaves):
                    if g is not None and g >= 0:
                        wanted[g] = min(wanted[g], number)
            found = self._of[backward] = self._compiled(backward, cut(backward.graph, wanted))
        return list(found)

    def _compiled(
        self, backward: Backward, parts: Sequence[Part]
    ) -> list[tuple[int, Part, RunFunction]]:
        compiled = (uncast(self.device, backward.compile(part, part.number)) for part in parts)
        return [(part.number, part, run) for part, run in zip(parts, compiled, strict=True)]


def _members(parts: Sequence[Part], gradients: Sequence[int | None]) -> list[tuple[int, ...]]:
    """Returns the leaves of each subgraph; gradients that need no operator come first."""
    giver = {output: number for number, part in enumerate(parts) for output in part.gives}
    members: list[list[int]] = [[] for _ in parts]
    for leaf, index in enumerate(gradients):
        members[giver[index] if index is not None and index >= 0 else 0].append(leaf)
    return [tuple(one) for one in members]


def chain(name: str, step: Step, subgraphs: Subgraphs) -> Callable[..., Any]:
    """Returns run(args, *leaves) for a graph whose backward runs as subgraphs."""
    device, members = step.device, subgraphs.members
    last = len(members) - 1

    def gradients(number: int, run: Run) -> tuple[torch.Tensor | None, list[torch.Tensor | None]]:
        """Returns (the gradient of the next subgraph's token, the leaves' gradients)."""
        run.until(number)
        found = run.of(members[number])
        if number == last:
            return None, found
        token = torch.empty(0, device=device)
        setattr(token, RUN, run)
        return token, found

    class FirstPart(torch.autograd.Function):
        forward = staticmethod(step.forward)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            run = step.opened(ctx, tangents)
            if run.backward is not None:
                run.left = subgraphs.of(run.backward)
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
