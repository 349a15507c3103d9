"""What a cache entry whose graph runs eagerly needs to become the one whose graph is compiled.

In: the captured graph, and what `tracer_core.execution.entry.builder` wrote of the entry. Out: the
compiled graph, and the same entry with it: the same guards (and those on sizes that compiling
added), fetches and effects. The two entries share no variable, so a call runs the one or the other.
What compiling reads of the program is taken at the capture: polyfills share the memory of its
tensors, so that it may drop or change them meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.backend_failure import falls_back, with_report
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.aot.static_shapes import has_symbols
from tracer_core.aot.unbacked_split import has_marks
from tracer_core.autoselect.candidates import CandidatePlan
from tracer_core.background.compilation import SettingsChanged
from tracer_core.background.gil_yielding import in_foreground
from tracer_core.background.thread_modes import Ambient
from tracer_core.bytecode.generated_code import define
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.debug import stages
from tracer_core.dispatch import compile_graph
from tracer_core.errors import BackendError
from tracer_core.execution.entry.namespace import runtime_namespace
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.fx_capture.dynamic_shapes import constraint_violation, size_conditions
from tracer_core.fx_capture.may_raise import communicates
from tracer_core.guards.guard import Relation
from tracer_core.guards.source import Source
from tracer_core.options import CompileConfig
from tracer_core.registry.eager import EAGER
from tracer_core.registry.torch_style import TorchStyle
from tracer_core.torch_private import settings

#: Stands in the text of an entry where guards on sizes that compiling adds will stand.
MORE_GUARDS = "pass  # guards that compiling adds"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The symbolic sizes of a graph. env: its ShapeEnv. inputs: source of a graph input -> its
    fake. numbers: symbol -> source of a number. constraints: what `mark_dynamic` promised. names:
    source -> its variable in the entry. known: the guards that the entry has."""

    env: Any
    inputs: dict[Source, Any]
    numbers: dict[Any, Source]
    constraints: Any
    names: dict[Source, str]
    known: frozenset[str]

    def added(self) -> list[Relation]:
        """Returns the conditions that were added since. Raises MarkedSizeError where they
        contradict a promise."""
        broken = constraint_violation(self.env, self.constraints)
        if broken is not None:
            raise broken
        result = size_conditions(self.env, self.inputs, self.numbers, torch_private.python_source)
        return [item for item in result if self.text(item) not in self.known]

    def text(self, condition: Relation) -> str:
        """Returns a condition as an expression of the entry's variables."""
        return condition.text(self.names.__getitem__)


class SecondUse:
    """Runs a graph in eager mode; one of its calls has it compiled first. Mutable. run: of
    `run_eagerly`."""

    __slots__ = ("_run", "_compile", "_calls_before")

    def __init__(self, run: RunFunction) -> None:
        self._run, self._calls_before = run, 1
        self._compile: Callable[[Sequence[Any]], None] | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self._calls_before:
            self._calls_before -= 1
        elif self._compile is not None:
            self._compile(tuple(inputs))
            self._compile = None
        return self._run(inputs)

    def waits_for(self, compile: Callable[[Sequence[Any]], None], calls_before: int = 1) -> None:
        """Sets what gets the inputs of the call after so many others, and compiles the graph."""
        self._compile, self._calls_before = compile, calls_before


class Pending:
    """A graph that is to be compiled. Mutable: `entry.builder` adds what it writes.

    name: of the graph. snapshot: the name of the entry's snapshot of mutated inputs, and what makes
    the compiled graph's; None where it mutates none. sizes: None where all are static. scope: the
    globals of the entry's text. second_use: what runs the graph where its second call compiles it,
    not a thread."""

    def __init__(
        self, captured: CapturedGraph, config: CompileConfig, second_use: SecondUse | None = None
    ) -> None:
        reals = captured.real_inputs
        if second_use is not None:
            reals = ()  # nothing of the first call stays alive
        elif not isinstance(config.backend.compile, TorchStyle):  # these may look at the objects
            reals = tuple(map(_polyfill, reals))
        self.second_use = second_use
        self.name = captured.name
        self.snapshot: tuple[str, Callable[[CompiledGraph], InputSnapshot]] | None = None
        self.sizes: Sizes | None = None
        self.scope: dict[str, Any] = {}
        self._captured, self._config = replace(captured.copied(), real_inputs=reals), config
        self._ambient, self._record = Ambient(), stages.continued()
        self._settings = settings.snapshot()

    def with_inputs(self, inputs: Sequence[Any]) -> None:
        """Takes the inputs of the call that has the graph compiled."""
        self._captured = replace(self._captured, real_inputs=tuple(map(_polyfill, inputs)))

    def compile(self) -> CompiledGraph:
        """Compiles the graph, in any thread. Raises what `compile_graph` raises, SettingsChanged,
        MarkedSizeError."""
        with (
            self._record(),
            self._ambient.entered(),
            torch_private.unshielded(),
            stages.interruptible(self._demand_settings),
        ):
            self._demand_settings()
            compiled = self._compiled()
            self._demand_settings()
        return compiled

    def _compiled(self) -> CompiledGraph:
        retries = bool(self.takes_constants())
        if retries or self._config.fullgraph or not falls_back(self._config.backend):
            return compile_graph.compile_graph(self._captured, self._config, retries=retries)
        # Where the backend fails, the entry that runs already goes on, which the caller logs.
        try:
            return compile_graph.compile_graph(self._captured, self._config, retries=True)
        except BackendError as error:
            raise with_report(self._captured, error) from error

    def entry(self, text: str, compiled: CompiledGraph) -> Made:
        """Returns the entry with this text whose graph is compiled."""
        added: list[Relation] = []
        if self.sizes is not None:
            added = self.sizes.added()
            lines = [f"if not ({self.sizes.text(item)}): return MISS" for item in added]
            text = _with_guards(text, lines or ["pass"])
        own: dict[str, Any] = {}
        if self.snapshot is not None:
            name, snapshot = self.snapshot
            own[name] = snapshot(compiled)
        scope = {**runtime_namespace(text), **self.scope, **own, "graph": compiled.run}
        return Made(define("entry", text, scope, self.name), text, own, tuple(added))

    def raising(self, text: str, error: BaseException) -> Callable[[Any], Any]:
        """Returns the entry with this text whose graph raises an error."""

        def run(inputs: list[Any]) -> Any:
            raise error

        return define("entry", text, {**self.scope, "graph": run}, self.name)

    def takes_constants(self) -> str:
        """Returns what could be constants if the backend cannot take symbols: "numbers", "sizes" or
        ""."""
        if self._config.backend.ir == "torch":
            return ""
        if any(isinstance(value, (int, float)) for value in self._captured.real_inputs):
            return "numbers"
        promised = self.sizes is not None and self.sizes.constraints
        return "sizes" if has_symbols(self._captured.gm) and not promised else ""

    def _demand_settings(self, stage: str = "") -> None:
        if settings.snapshot() != self._settings:
            raise SettingsChanged("a setting of torch changed while the graph was compiled")


@dataclass(frozen=True, slots=True)
class Made:
    """An entry whose graph is compiled. own: its constants that differ from the eager entry's.
    added: its guards that the eager entry does not have."""

    entry_function: Callable[[Any], Any]
    text: str
    own: dict[str, Any]
    added: tuple[Relation, ...]


def may_wait(captured: CapturedGraph, config: CompileConfig) -> bool:
    """Returns whether a thread compiles a graph while it runs eagerly."""
    return config.when == "background" and may_run_eagerly(captured, config)


def may_run_eagerly(captured: CapturedGraph, config: CompileConfig) -> bool:
    """Returns whether a graph can run eagerly until it is compiled: not where other ranks take part,
    where it sets what all threads share (lowering runs it on fakes), nor where its parts are compiled
    as calls reach them (unbacked sizes, `backend="auto"`)."""
    return (
        not isinstance(config.options, CandidatePlan)
        and config.backend.compile is not EAGER.compile
        and not communicates(captured.gm.graph)
        and not settings.sets_shared(_called(captured.gm.graph))
        and not has_marks(captured.gm)
    )


def _called(graph: torch.fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if callable(node.target)]


def run_eagerly(captured: CapturedGraph, config: CompileConfig) -> CompiledGraph:
    """Returns what runs a graph until it is compiled."""
    eager = replace(config, backend=EAGER, options=None, mode="default")
    result = compile_graph.compile_graph(captured, eager)
    return result.with_run(in_foreground(result.run))


def _with_guards(text: str, guards: list[str]) -> str:
    """Returns the text with guards in the place that is left for them."""
    lines = text.split("\n")
    (at,) = (number for number, line in enumerate(lines) if line.strip() == MORE_GUARDS)
    indent = lines[at].removesuffix(MORE_GUARDS)
    lines[at : at + 1] = [f"{indent}{guard}" for guard in guards]
    return "\n".join(lines)


def _polyfill(value: Any) -> Any:
    """Returns another tensor with the memory of a plain tensor and its present `requires_grad`; any
    other value as it is."""
    if type(value) not in torch_private.BASE_TENSOR_TYPES or value.layout is not torch.strided:
        return value
    return value.detach().requires_grad_(value.requires_grad)
