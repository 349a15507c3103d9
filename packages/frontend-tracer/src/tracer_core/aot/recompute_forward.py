"""Runs a captured graph again under eager autograd, when a backward runs with grad mode on, or for
gradients that no compiled graph computes.

`remember` keeps the inputs of a forward call; `gradients` then returns differentiable gradients for
the tangents of its backward. The captured graph runs again as it ran the first time: with the same
inputs (their versions are checked), random numbers and autocast, and without mutating its inputs.
The CPU's generator draws its random numbers again; those of an accelerator are among the saved
tensors. Where that is impossible, a RuntimeError says why. `double_backward` makes it from a captured
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.output_hooks import OutputHooks
from tracer_core.aot.rng_double_backward import RngReplay, RngReplayNode
from tracer_core.torch_private import settings


@dataclass(frozen=True, slots=True)
class RecomputeForward:
    """forward: the captured graph. name: of it. differentiable: inputs that get a gradient.
    tangents: outputs that have a tangent. mutations: inputs that are written to. settings: of
    autocast. uses_rng: the CPU's generator draws its random numbers again. replayed: where the
    forward saved its random numbers, in the order of the graph. versioned: inputs with a version. positions: output of
    the forward graph -> of the captured one. inputs: their number. obstacle: why it cannot run
    again, or ""."""

    forward: Callable[..., Any]
    name: str
    differentiable: tuple[int, ...]
    tangents: tuple[int, ...]
    mutations: frozenset[int]
    settings: Mapping[str, Any]
    uses_rng: bool
    replayed: tuple[RngReplayNode, ...]
    versioned: tuple[int, ...]
    positions: Mapping[int, int]
    inputs: int
    obstacle: str

    def remember(self, ctx: Any, args: Sequence[Any]) -> None:
        """Keeps what a second run needs, before the forward clears its list of inputs."""
        ctx.arguments = tuple(args)
        ctx.rng = torch.get_rng_state() if self.uses_rng else None

    def remember_versions(self, ctx: Any) -> None:
        """Records the versions of the inputs, after the forward has written to some."""
        inputs = ctx.arguments
        ctx.versions = [inputs[index]._version for index in self.versioned]

    def gradients(
        self,
        ctx: Any,
        tangents: Sequence[torch.Tensor | None],
        what: str = "a gradient of a gradient",
        differentiable: bool = True,
        observed: Sequence[tuple[int, OutputHooks]] = (),
    ) -> Sequence[torch.Tensor | None]:
        """Returns the gradient of each differentiable input.

        what: is asked for, in the words of an error. differentiable: so are the gradients.
        observed: outputs whose hooks and retained gradients get the whole gradient.
        """
        if self.obstacle:
            raise RuntimeError(f"{self.name}: {what} was asked for, but {self.obstacle}")
        inputs = ctx.arguments
        if ctx.versions != [inputs[index]._version for index in self.versioned]:
            raise RuntimeError(
                f"{self.name}: an input of the compiled graph was modified by an inplace operation"
                f" before {what} was computed"
            )
        # Keeps the inputs' own autograd history out of the way: inputs that are written to are
        # copied.
        args = [value.clone() if i in self.mutations else value for i, value in enumerate(inputs)]
        before, stream = settings.snapshot(), torch.get_rng_state() if self.uses_rng else None
        try:
            settings.restore({**before, **self.settings, "grad": True})
            if ctx.rng is not None:
                torch.set_rng_state(ctx.rng)
            with torch_private.outside_vmap():  # of the gradients: the inputs know of none
                outputs = self._run(ctx, args[: self.inputs])
        finally:
            settings.restore(before)
            if stream is not None:
                torch.set_rng_state(stream)
        for index, hooks in observed:
            hooks.observe(ctx, outputs[self.positions[index]], tangents[index])
        roots = [
            (outputs[self.positions[index]], tangents[index])
            for index in self.tangents
            if tangents[index] is not None
        ]
        return torch.autograd.grad(
            [root for root, _ in roots],
            [inputs[index] for index in self.differentiable],
            [tangent for _, tangent in roots],
            create_graph=differentiable,
            allow_unused=True,
        )

    def _run(self, ctx: Any, args: Sequence[Any]) -> Sequence[Any]:
        if not self.replayed:
            return self.forward(*args)  # type: ignore[no-any-return]
        with RngReplay(self.replayed, ctx.saved_tensors) as again:
            outputs = self.forward(*args)
        again.finish()
        return outputs  # type: ignore[no-any-return]

    def gradients_alone(
        self,
        ctx: Any,
        tangents: Sequence[torch.Tensor | None],
        what: str,
        observed: Sequence[tuple[int, OutputHooks]] = (),
    ) -> Sequence[torch.Tensor | None]:
        """Returns the gradient of each differentiable input, without a history."""
        with torch.enable_grad():
            return self.gradients(ctx, tangents, what, differentiable=False, observed=observed)
