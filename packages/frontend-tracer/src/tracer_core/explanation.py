"""What a program was captured as: graphs, breaks with the user's lines, guards.

In: a function and the arguments of one call. Out: an `Explanation`, printable and with fields. What
always holds: explaining runs the program once, through capture with the `eager` backend, so its
effects happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core.autoselect.candidates import CandidatePlan, runs
from tracer_core.autoselect.choice import BackendChoice
from tracer_core.debug.crossed_limits import crossings
from tracer_core.debug.notebook import NotebookText, screen
from tracer_core.debug.stages import records_of
from tracer_core.execution.capture.result import BreakRecord, Captured
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.markers import traced_function
from tracer_core.options import CompileConfig
from tracer_core.registry.discovery import get
from tracer_core.switch import reason_for_eager


@dataclass(frozen=True, slots=True)
class Explanation(NotebookText):
    """What `explain` returns: how the program was captured. ``print`` shows it, of graphs at most a screen."""

    #: The torch-level graphs, in the order of capture.
    graphs: tuple[torch.fx.GraphModule, ...]
    #: The graph breaks, each with kind, reason, location and hint.
    breaks: tuple[BreakRecord, ...]
    #: The guards of every region, as Python expressions.
    guards: tuple[str, ...]
    #: The number of operators in all graphs.
    op_count: int
    #: The result of the call.
    result: Any
    #: Why parts of the program ran eagerly.
    skipped: tuple[str, ...] = ()
    #: Where several backends compile the graphs of the compiled object: which of them serves each.
    choices: tuple[BackendChoice, ...] = ()
    #: What became of the graphs of the compiled object since (captured as CUDA graphs or why not,
    #: after the graph's name), and how fast its calls are beside eager ones.
    runs: tuple[str, ...] = ()
    #: The limits that the call or the compiled object reached, and what happens beyond them
    #: (`tracer-core limits`).
    limits: tuple[str, ...] = ()

    @property
    def graph_count(self) -> int:
        """The number of graphs."""
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        """The number of graph breaks."""
        return len(self.breaks)

    def __str__(self) -> str:
        lines = [
            f"graphs: {self.graph_count}   breaks: {self.graph_break_count}   operators:"
            f" {self.op_count}   guards: {len(self.guards)}"
        ]
        for i, record in enumerate(self.breaks, 1):
            lines += [
                f"break {i}: {record.location}",
                f"  {record.reason} [{record.kind}]",
                f"  what would remove it: {record.hint}",
            ]
        lines += [f"ran eagerly: {reason}" for reason in self.skipped]
        lines += [f"limit reached: {limit}" for limit in self.limits]
        lines += [f"compiled before, {run}" for run in self.runs]
        lines += [line for choice in self.choices for line in str(choice).splitlines()]
        shown: list[str] = []
        for i, gm in enumerate(self.graphs):
            shown.append(f"graph {i}:")
            shown += [f"  {line}" for line in str(gm.graph).splitlines()[1:] if line.strip()]
        return "\n".join([*lines, *screen(shown, "`graphs` holds all of them")])


def explanation(compiled: CompiledFunction, result: Any = None) -> Explanation:
    """Returns what a compiled function has captured so far."""
    records: list[Captured] = compiled.records
    switched_off = reason_for_eager()
    return Explanation(
        graphs=tuple(r.graph for r in records if r.graph is not None),
        breaks=tuple(dict.fromkeys(compiled.breaks)),
        guards=tuple(guard for r in records for guard in r.guards),
        op_count=sum(r.op_count for r in records),
        result=result,
        skipped=(*compiled.abandoned, *([] if switched_off is None else [switched_off])),
        limits=tuple(map(str, crossings(compiled))),
    )


def without_backend(compiled: CompiledFunction) -> list[str]:
    """Returns a line for each graph that runs, as a whole or in parts, without its backend."""
    runners = [record.runner for record in compiled.records if record.runner is not None]
    result = [
        f"{runner.fallback.graph}: {runner.fallback.kind}: {runner.fallback.reason}"
        for runner in runners
        if runner.fallback is not None
    ]
    # what failed in a call, after the entry was captured
    later = [
        f"{record.graph}: {record.text}"
        for record in records_of(compiled)
        if record.name == "fallback"
    ]
    return list(dict.fromkeys([*result, *later]))


def explain(function: Callable[..., Any], asked: Any = None) -> Callable[..., Explanation]:
    """Returns a function that captures one call of `function`; see `tracer_core.explain`.

    Args:
        function: What is called.
        asked: The compiled function that the user passed, or None.
    """
    config = CompileConfig(get("eager"))

    def described(compiled: CompiledFunction, result: Any) -> Explanation:
        created = explanation(compiled, result)
        if not isinstance(asked, CompiledFunction):
            return created
        plan = asked.config.options
        choices = (
            tuple(trial.choice() for trial in plan.trials)
            if isinstance(plan, CandidatePlan)
            else ()
        )
        data = runs(asked.config, {record.name for record in asked.records})
        waiting = [f"{item.graph}: {item.text}" for item in asked.compilations if not item.is_done]
        lines = [*waiting, *(f"{graph}: {text}" for graph, text in data)]
        lines += map(str, asked.verdicts)
        lines += without_backend(asked)
        reached = dict.fromkeys((*created.limits, *map(str, crossings(asked))))
        return replace(created, choices=choices, runs=tuple(lines), limits=tuple(reached))

    followed, first = traced_function(function)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        compiled = CompiledFunction(followed, config)
        return described(compiled, compiled(*first, *args, **kwargs))

    return explained
