"""What a program was captured as: graphs, breaks with the user's lines, guards.

In: a function and the arguments of one call. Out: an `Explanation`, printable and with fields. What
always holds: explaining runs the program once, so its effects happen. A compiled object is called
itself, so that what is explained is what runs; any other is captured with the `eager` backend.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core.autoselect.candidates import CandidatePlan, runs
from tracer_core.autoselect.choice import BackendChoice
from tracer_core.debug.crossed_limits import crossings
from tracer_core.debug.notebook import NotebookText, screen
from tracer_core.debug.stages import records_of
from tracer_core.errors import GraphBreakError
from tracer_core.execution.call import Call, StartKey
from tracer_core.execution.capture.result import BreakRecord, Captured
from tracer_core.execution.capture_lock import obstacle
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.execution.entry.resume_function import ResumeFunction
from tracer_core.execution.store.reader import LoadedEntry
from tracer_core.markers import traced_function, uncompiled
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
    #: Why the program, or parts of it, ran eagerly.
    skipped: tuple[str, ...] = ()
    #: Where several backends compile the graphs of the compiled object: which of them serves each.
    choices: tuple[BackendChoice, ...] = ()
    #: What became of the graphs of the compiled object since (captured as CUDA graphs or why not,
    #: after the graph's name), and how fast its calls are beside eager ones.
    runs: tuple[str, ...] = ()
    #: The backend that compiles the graphs, and its mode unless that is the default one.
    backend: str = "eager"
    #: What the graphs assume of tensors' values where there would be a graph break: line, answer and
    #: why. A call with other values runs in eager mode.
    speculated: tuple[str, ...] = ()
    #: The names of graphs that an earlier process captured (the persistent cache): they are in
    #: `op_count`, `breaks` and `guards`, not in `graphs`. ``TRACER_KEEP=0`` captures them here.
    loaded: tuple[str, ...] = ()
    #: Where the call of an object with ``fullgraph=True`` raises GraphBreakError, or "".
    raises: str = ""
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
            + (f"   backend: {self.backend}" if self.backend != "eager" else "")
        ]
        for i, record in enumerate(self.breaks, 1):
            lines += [
                f"break {i}: {record.location}",
                *([f"  in {record.library}"] if record.library else []),
                f"  {record.reason} [{record.kind}]",
                f"  what would remove it: {record.hint}",
            ]
        if not (self.op_count or self.breaks or self.skipped):
            lines.append("no operator of torch runs: there is nothing to compile")
        lines += [f"raises GraphBreakError, with fullgraph=True, at {self.raises}"] * bool(
            self.raises
        )
        lines += [f"speculated: {text}" for text in self.speculated]
        lines += [f"ran eagerly: {reason}" for reason in self.skipped]
        lines += [f"limit reached: {limit}" for limit in self.limits]
        lines += [f"so far: {run}" for run in self.runs]
        lines += [f"captured by an earlier process: {name}" for name in self.loaded]
        lines += [line for choice in self.choices for line in str(choice).splitlines()]
        shown: list[str] = []
        for i, gm in enumerate(self.graphs):
            shown.append(f"graph {i}:")
            shown += [f"  {line}" for line in str(gm.graph).splitlines()[1:] if line.strip()]
        return "\n".join([*lines, *screen(shown, "`graphs` holds all of them")])


def explanation(
    compiled: CompiledFunction, result: Any = None, reasons: Sequence[str] = ()
) -> Explanation:
    """Returns what the entries of a compiled function that are in use were captured as.

    Args:
        compiled: The compiled function.
        result: Of the call.
        reasons: Why the call ran in eager mode.
    """
    used, loaded = _in_use(compiled), compiled.loaded
    entries: list[Captured | LoadedEntry] = [*loaded, *used]
    plan, config = compiled.config.options, compiled.config
    trials = plan.trials if isinstance(plan, CandidatePlan) else ()
    waiting = [f"{item.graph}: {item.text}" for item in compiled.compilations if not item.is_done]
    data = runs(config, {record.name for record in compiled.records})
    skipped = [*reasons, *(why for what, why in eager_parts(compiled) if what in _WHOLE)]
    if isinstance(result, types.GeneratorType):
        skipped.append("the generator that the call returns, where it is iterated")
    elif not (skipped or used or loaded):
        skipped.append("nothing was captured, for a reason that is not known: please report it")
    return Explanation(
        graphs=tuple(record.graph for record in used if record.graph is not None),
        breaks=tuple(dict.fromkeys(entry.break_ for entry in entries if entry.break_)),
        guards=(
            *(condition for entry in loaded for condition in entry.conditions()),
            *(guard for record in used for guard in record.guards),
        ),
        op_count=sum(entry.op_count for entry in entries),
        result=result,
        skipped=tuple(dict.fromkeys(skipped)),
        choices=tuple(trial.choice() for trial in trials),
        runs=(
            *waiting,
            *(f"{graph}: {text}" for graph, text in data),
            *(str(verdict) for verdict in compiled.verdicts if not verdict.native),
        ),
        limits=tuple(map(str, crossings(compiled))),
        backend=config.backend.name + (f", mode {config.mode}" if config.mode != "default" else ""),
        speculated=tuple(dict.fromkeys(text for entry in entries for text in entry.speculated)),
        loaded=tuple(f"{entry.name} ({entry.op_count} operators)" for entry in loaded),
    )


def _in_use(compiled: CompiledFunction) -> list[Captured]:
    """Returns the entries captured here that calls may still find.

    Those behind a graph break are found while an entry at a start breaks.
    """
    regions = {record.name: key for key, record in compiled.captured()}
    used = [record for record in compiled.records if record.name in regions]
    starts = [record for record in used if isinstance(regions[record.name], StartKey)]
    breaks = compiled.loaded or any(
        isinstance(value, ResumeFunction)
        for record in starts
        for value in record.constants.values()
    )
    return used if breaks else starts


#: What runs eagerly as a whole, in the first column of `eager_parts`.
_WHOLE = _FUNCTION, _PART, _GRAPH = "the function", "a part of the function", "graph"


def eager_parts(compiled: CompiledFunction) -> list[tuple[str, str]]:
    """Returns what runs without its backend (one of `_WHOLE`, or an operator), and why."""
    skipped, records = compiled.skipped, compiled.records
    rows = [(_FUNCTION, text) for text in (reason_for_eager(), skipped) if text is not None]
    rows += [(_PART, text) for text in compiled.abandoned if text != skipped]
    rows += [(_FUNCTION, str(verdict)) for verdict in compiled.verdicts if verdict.native]
    runners = [record.runner for record in records if record.runner is not None]
    fallbacks = [runner.fallback for runner in runners if runner.fallback is not None]
    rows += [(_GRAPH, f"{item.graph}: {item.kind}: {item.reason}") for item in fallbacks]
    # what failed in a call, after the entry was captured
    rows += [
        (_GRAPH, f"{record.graph}: {record.text}")
        for record in records_of(compiled)
        if record.name == "fallback"
    ]
    rows += [row for item in fallbacks for row in item.refused]
    return list(dict.fromkeys(rows))


def explain(function: Callable[..., Any], asked: Any = None) -> Callable[..., Explanation]:
    """Returns a function that calls `function` and explains it; see `tracer_core.explain`.

    Args:
        function: What is called.
        asked: The compiled function behind it. None: it is captured for the call alone.
    """
    followed, first = traced_function(uncompiled(function))

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        reasons = [*reasons_for_eager(Call((*first, *args), kwargs))]
        compiled = asked
        if compiled is None:
            compiled = CompiledFunction(followed, CompileConfig(get("eager")))
            return explanation(compiled, compiled(*first, *args, **kwargs), reasons)
        try:
            return explanation(compiled, function(*args, **kwargs), reasons)
        except GraphBreakError as error:
            if compiled.records:  # the program has run
                raise
            location = error.location
        compiled = CompiledFunction(followed, replace(compiled.config, fullgraph=False))
        result = compiled(*first, *args, **kwargs)
        return replace(explanation(compiled, result, reasons), raises=location)

    return explained


def reasons_for_eager(call: Call) -> Iterator[str]:
    """Yields why a call runs in eager mode now, whatever was captured before."""
    if (reason := reason_for_eager() or obstacle()) is not None:
        yield reason
    if call.has_uninitialized_module():
        yield "the first call of a lazy module, which makes its parameters"
