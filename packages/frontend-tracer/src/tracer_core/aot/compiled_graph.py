"""`CompiledGraph`: the runner of a captured graph, as the dispatcher returns it."""

from __future__ import annotations

from dataclasses import dataclass

from tracer_core.aot.output_aliasing import OutputPlan
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec
from tracer_core.debug.fallbacks import Fallback


@dataclass(frozen=True, slots=True)
class RunnerArtifacts:
    """What the runner of a captured graph is made from, for storing it: the backend's own runner,
    the plan for outputs, the spec that it was compiled for, and the modes that are off around it
    (`dispatch.without_modes`)."""

    runner: Runner
    plan: OutputPlan
    spec: CompileSpec
    modes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CompiledGraph(Runner):
    """A runner that takes and returns the captured graph's own inputs and outputs.

    fallback: why the graph, or a part of it, runs without its backend. artifacts: what the runner
    is made from, None where that cannot be stored."""

    fallback: Fallback | None = None
    artifacts: RunnerArtifacts | None = None
