"""Puts recordings round a runner, where its graph can be recorded.

In: a runner for a lowered graph, the graph, its `CompileSpec`. Out: a runner with the same results.
What always holds: where nothing can be recorded the runner comes back as it is, and `report` has
the reason.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from cudagraphs_backend import capturability, pool_assignment
from cudagraphs_backend.capturability import Traits
from cudagraphs_backend.numbers import Numbers, WithNumbers
from cudagraphs_backend.options import CudaGraphsOptions
from cudagraphs_backend.runner import GraphedRunner, Row, runners
from cudagraphs_backend.state import states
from tracer_core.plugin_api import CompileSpec, InputSpec, Role, RunFunction, Runner, logger, stage

#: Graphs that are not recorded at all, with reasons; the last ones.
_refused: deque[Row] = deque(maxlen=256)


def wrap(
    runner: Runner | RunFunction,
    graph: torch.fx.GraphModule | Mapping[str, Any],
    spec: CompileSpec,
    options: CudaGraphsOptions | None = None,
    *,
    run_placed: pool_assignment.PlacedRunner | None = None,
    numbers: Numbers | None = None,
) -> Runner:
    """`runner`, replayed from recordings on CUDA devices. graph: or, where a stored runner is back
    without its graph, the `Runner.graph_traits` of what came out when it was wrapped first.
    options: None takes them from `spec.options` where those are this backend's, else the defaults.
    run_placed: does the same, and calls its second argument with True before it allocates memory
    that its results live in, with False before other memory. numbers: the runner takes one more
    input, a tensor of the floats that a call brings, and reads these nowhere else."""
    runner = Runner.of(runner, "a wrapped backend")
    traits = (
        capturability.traits_of(graph.graph)
        if isinstance(graph, torch.fx.GraphModule)
        else Traits.restored(graph)
    )
    reason = traits.reason
    state = None if traits.device is None or reason is not None else states.of(traits.device)
    with stage("cudagraphs", graph=spec.name) as record:
        record.text = reason or "recorded at the call after the first of each size"
    if state is None:
        _refused.append(
            Row(
                spec.name, spec.backend, spec.phase.value, 0, 0, 0, 0, 0, reason or "no such device"
            )
        )
        logger().info("%s, cudagraphs: runs without a recording: %s", spec.name, reason)
        return runner
    options = options or _options(spec.options)
    if numbers is not None:
        given = InputSpec("numbers", Role.BUFFER, "numbers", stable_address=True)
        spec = dataclasses.replace(spec, inputs=(*spec.inputs, given))
    run: RunFunction = GraphedRunner(runner.run, traits, spec, state, options, run_placed)
    if numbers is not None:
        run = WithNumbers(run, state, numbers)
    return runner.with_run(run, mutated_on_error=None, graph_traits=traits.stored())


def _options(given: Any) -> CudaGraphsOptions:
    """Not another backend's fields of the same name: they mean other things."""
    return given if isinstance(given, CudaGraphsOptions) else CudaGraphsOptions()


def compile_graph(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """A runner that replays the graph's own operators."""
    with_places = _called(pool_assignment.placed(graph))
    return wrap(_called(graph), graph, spec, run_placed=lambda inputs, to: with_places(inputs))


def _called(graph: torch.fx.GraphModule) -> RunFunction:
    forward = graph.forward

    def run(inputs: list[Any]) -> Any:
        return forward(*inputs)

    return run


def report() -> list[Row]:
    """A row for every graph that was called since the last reset and is alive, and for those that
    are not recorded.
    """
    rows = [one.row() for one in runners()]
    return sorted(
        (row for row in rows if row.replays or row.plain), key=lambda row: row.name
    ) + list(_refused)


def told() -> list[tuple[str, str]]:
    """The same as (graph, sentence), for `tracer_core.explain` and `last_compile`."""
    return [(row.name, row.sentence()) for row in report()]


def reset() -> None:
    """Throws every recording away and gives its memory back; graphs record again when they are next
    called.
    """
    for one in runners():
        one.forget()
    states.clear()
    _refused.clear()
