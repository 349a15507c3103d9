"""Wraps a runner so that CUDA graphs replay its work, where its graph can be captured.

Where it cannot, `wrap` returns the runner unchanged and `report` has the reason."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from cudagraphs_backend import capturability, pool_assignment
from cudagraphs_backend.capturability import Traits
from cudagraphs_backend.options import CudaGraphsOptions
from cudagraphs_backend.policy import Verdicts, few_launches
from cudagraphs_backend.runner import GraphedRunner, GraphRow, runners
from cudagraphs_backend.state import states
from cudagraphs_backend.symbolic_scalars import Numbers, WithNumbers
from tracer_core.plugin_api import CompileSpec, InputSpec, Role, RunFunction, Runner, logger, stage

#: The last graphs that could not be captured, with reasons.
_refused: deque[GraphRow] = deque(maxlen=256)


def wrap(
    runner: Runner | RunFunction,
    graph: torch.fx.GraphModule | Mapping[str, Any],
    spec: CompileSpec,
    options: CudaGraphsOptions | None = None,
    *,
    run_in_pools: pool_assignment.PoolRunner | None = None,
    numbers: Numbers | None = None,
    launches: int | None = None,
    module: str | None = None,
) -> Runner:
    """Returns `runner`, replayed from CUDA graphs on CUDA devices. graph: the lowered graph, or,
    where a stored runner is back without its graph, the `Runner.graph_traits` of the runner that
    the first wrap returned. options: None takes them from `spec.options` where those are this
    backend's, else the defaults. run_in_pools: does the same as `runner`, and calls its second
    argument with True before it allocates memory of results, with False before other memory.
    numbers: the runner takes one more input, a tensor of the float arguments of a call, and reads
    these nowhere else. launches: of one call, where the caller knows. module: the source of the
    runner, under which the option `measured` stores its verdicts for later processes. The returned
    runner's ``run.recapture()`` throws its CUDA graphs away; calls capture new ones."""
    runner = Runner.of(runner, "a wrapped backend")
    traits = (
        capturability.traits_of(graph.graph)
        if isinstance(graph, torch.fx.GraphModule)
        else Traits.restored(graph)
    )
    options = options or _options(spec.options)
    few = few_launches(launches) if options.measured and launches is not None else None
    reason = traits.reason or few
    state = None if traits.device is None or reason is not None else states.of(traits.device)
    with stage("cudagraphs", graph=spec.name) as record:
        record.text = reason or "recorded at the call after the first of each size"
    if state is None:
        _refused.append(
            GraphRow(
                spec.name, spec.backend, spec.phase.value, 0, 0, 0, 0, 0, reason or "no such device"
            )
        )
        logger().info("%s, cudagraphs: runs without a recording: %s", spec.name, reason)
        return runner
    if numbers is not None:
        input_spec = InputSpec("numbers", Role.BUFFER, "numbers", stable_address=True)
        spec = dataclasses.replace(spec, inputs=(*spec.inputs, input_spec))
    verdicts = None
    if options.measured and module is not None and spec.device.type == "cuda":
        stored = isinstance(graph, Mapping)
        verdicts = Verdicts(module, spec.device, from_store=stored)
    graphed = GraphedRunner(
        runner.run, traits, spec, state, options, run_in_pools, verdicts, launches or 0
    )
    run: RunFunction = graphed
    if numbers is not None:
        run = WithNumbers(graphed, state, numbers, graphed.recapture)
    return runner.with_run(run, mutated_on_error=None, graph_traits=traits.stored())


def _options(value: Any) -> CudaGraphsOptions:
    """Ignores another backend's options: their fields of the same name mean other things."""
    return value if isinstance(value, CudaGraphsOptions) else CudaGraphsOptions()


def compile_graph(graph: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Returns a runner that replays the graph's own operators."""
    with_places = _called(pool_assignment.with_pools(graph))
    return wrap(_called(graph), graph, spec, run_in_pools=lambda inputs, to: with_places(inputs))


def _called(graph: torch.fx.GraphModule) -> RunFunction:
    forward = graph.forward

    def run(inputs: list[Any]) -> Any:
        return forward(*inputs)

    return run


def report() -> list[GraphRow]:
    """Returns a row for every live graph that was called since the last reset, and for those that
    could not be captured."""
    rows = [runner.row() for runner in runners()]
    return sorted(
        (row for row in rows if row.replays or row.plain), key=lambda row: row.name
    ) + list(_refused)


def sentences() -> list[tuple[str, str]]:
    """Returns the report as (graph, sentence) pairs, for `explain` and `last_compile`."""
    return [(row.name, row.sentence()) for row in report()]


def reset() -> None:
    """Throws every CUDA graph away and frees its memory; graphs are captured again when next
    called."""
    for runner in runners():
        runner.forget()
    states.clear()
    _refused.clear()
