"""Double backward: differentiates the captured graph eagerly when a backward runs with grad mode
on.

`remember` keeps the inputs of a forward call; `gradients` then returns differentiable gradients for
the tangents of its backward. The captured graph runs again as it ran the first time: with the same
inputs (their versions are checked), random numbers and autocast, and without mutating its inputs.
Where that is impossible, a RuntimeError says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.dead_code import is_random
from tracer_core.aot.joint_graph import Joint
from tracer_core.aot.output_aliasing import FromGraph
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import operators

aten = operators("aten")

#: Operators that take inputs they do not read: positions of running statistics, and of
#: ``training``.
UNREAD = {aten._native_batch_norm_legit_functional.default: ((3, 4), 5)}


class Differentiated:
    """Runs one captured graph again. Immutable."""

    def __init__(self, captured: CapturedGraph, joint: Joint) -> None:
        self.forward = captured.gm.forward
        self.name = captured.name
        self.differentiable = joint.differentiable
        self.tangents = tuple(i for i, node in enumerate(joint.tangents) if node is not None)
        self.mutations = frozenset(joint.mutations)
        self.settings = {
            name: value
            for name, value in settings.snapshot().items()
            if settings.SETTINGS[name].autocast
        }
        self.draws = any(map(is_random, joint.forward))
        self.versioned = tuple(
            index
            for index, value in enumerate(captured.real_inputs)
            if isinstance(value, torch.Tensor) and not value.is_inference()
        )
        self.positions = {
            step.index: position
            for position, step in enumerate(joint.plan.steps)
            if isinstance(step, FromGraph)
        }
        self.inputs = len(captured.real_inputs)
        self.obstacle = self._obstacle(joint)

    def _obstacle(self, joint: Joint) -> str:
        """Returns why the captured graph cannot run again, or ""."""
        if any(index not in self.positions for index in self.tangents):
            return "several of its outputs share memory"
        if self.draws and any(
            isinstance(v := node.meta.get("val"), torch.Tensor) and v.device.type != "cpu"
            for node in joint.forward
        ):
            return "it draws random numbers on an accelerator"
        if any(torch_private.communicates(node.target) for node in joint.forward):
            return "it communicates, which the other ranks would not do again"
        placeholders = [node for node in joint.forward if node.op == "placeholder"]
        for index in self.mutations:
            node = placeholders[index]
            reads = (user for user in node.users if user.target is not aten.copy_.default)
            if not all(_ignored(user, node) for user in reads):
                return f"it reads its input {node.name}, which it also changes"
        return ""

    def remember(self, ctx: Any, args: Sequence[Any]) -> None:
        """Keeps what a second run needs, before the forward clears its list of inputs."""
        ctx.given = tuple(args)
        ctx.rng = torch.get_rng_state() if self.draws else None

    def remember_versions(self, ctx: Any) -> None:
        """Records the versions of the inputs, after the forward has written to some."""
        given = ctx.given
        ctx.versions = [given[index]._version for index in self.versioned]

    def gradients(
        self,
        ctx: Any,
        tangents: Sequence[torch.Tensor | None],
        what: str = "a gradient of a gradient",
        differentiable: bool = True,
    ) -> Sequence[torch.Tensor | None]:
        """Returns the gradient of each differentiable input.

        what: is asked for, in the words of an error. differentiable: so are the gradients.
        """
        if self.obstacle:
            raise RuntimeError(f"{self.name}: {what} was asked for, but {self.obstacle}")
        given = ctx.given
        if ctx.versions != [given[index]._version for index in self.versioned]:
            raise RuntimeError(
                f"{self.name}: an input of the compiled graph was modified by an inplace operation"
                f" before {what} was computed"
            )
        # Keeps the inputs' own autograd history out of the way: inputs that are written to are
        # copied.
        args = [value.clone() if i in self.mutations else value for i, value in enumerate(given)]
        before, stream = settings.snapshot(), torch.get_rng_state() if self.draws else None
        try:
            settings.restore({**before, **self.settings, "grad": True})
            if ctx.rng is not None:
                torch.set_rng_state(ctx.rng)
            with torch_private.outside_vmap():  # of the gradients: the inputs know of none
                outputs = self.forward(*args[: self.inputs])
        finally:
            settings.restore(before)
            if stream is not None:
                torch.set_rng_state(stream)
        roots = [
            (outputs[self.positions[index]], tangents[index])
            for index in self.tangents
            if tangents[index] is not None
        ]
        return torch.autograd.grad(
            [root for root, _ in roots],
            [given[index] for index in self.differentiable],
            [tangent for _, tangent in roots],
            create_graph=differentiable,
            allow_unused=True,
        )

    def gradients_alone(
        self, ctx: Any, tangents: Sequence[torch.Tensor | None], what: str
    ) -> Sequence[torch.Tensor | None]:
        """Returns the gradient of each differentiable input, without a history."""
        with torch.enable_grad():
            return self.gradients(ctx, tangents, what, differentiable=False)


def _ignored(user: torch.fx.Node, value: torch.fx.Node) -> bool:
    """Whether an operator takes a value without using it for its result."""
    if user.target not in UNREAD:
        return all(other.target is aten.copy_.default for other in user.users)
    positions, training = UNREAD[user.target]
    at = [index for index, argument in enumerate(user.args) if argument is value]
    return bool(user.args[training]) and set(at) <= set(positions)
