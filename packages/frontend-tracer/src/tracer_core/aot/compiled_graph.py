"""`CompiledGraph`: the runner of a captured graph, as the dispatcher returns it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracer_core.aot.autograd_node import NodePlan
from tracer_core.aot.output_aliasing import OutputPlan
from tracer_core.aot.recompute_forward import RecomputeForward
from tracer_core.aot.result_check import Substitute
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec
from tracer_core.debug.fallbacks import Fallback


@dataclass(frozen=True, slots=True)
class RunnerArtifacts:
    """What the runner of a captured graph is made from, for storing it: the backend's own runner,
    the plan for outputs, the spec that it was compiled for, and the modes that are off around it
    (`ambient_modes.without_modes`). grad_mode: it runs with grad mode on. used_up: outputs that
    require grad though their graph was freed. training: the backward, None without one. is_step: it
    computes gradients itself. substitute: what runs in the runner's place if its first call fails."""

    runner: Runner
    plan: OutputPlan
    spec: CompileSpec
    modes: tuple[str, ...] = ()
    grad_mode: bool = False
    used_up: tuple[int, ...] = ()
    training: TrainingArtifacts | None = None
    is_step: bool = False
    substitute: Substitute | None = None

    @property
    def runs_alone(self) -> bool:
        """Returns whether the backend's runner runs with nothing around it but the output plan."""
        return not (self.modes or self.is_step or self.training)


@dataclass(frozen=True, slots=True)
class TrainingArtifacts:
    """What makes an autograd node of a forward graph. node, again: its values. backwards(): those
    that were compiled so far: (tangents, gradients, artifacts) each. listeners: are called when
    another one was compiled."""

    node: NodePlan
    again: RecomputeForward
    backwards: Callable[
        [], list[tuple[Sequence[int], Sequence[int | None], RunnerArtifacts | None]]
    ]
    listeners: list[Callable[[], None]]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGraph(Runner):
    """A runner that takes and returns the captured graph's own inputs and outputs.

    fallback: why the graph, or a part of it, runs without its backend. artifacts: what the runner
    is made from, None where that cannot be stored."""

    fallback: Fallback | None = None
    artifacts: RunnerArtifacts | None = None
