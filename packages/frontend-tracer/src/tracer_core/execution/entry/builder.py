"""Turns a finished trace into a cache entry: compiles its graph and generates its guards, results
and side effects as Python.

In: a `Tracer` that has run to a return or a break. Out: a `Captured`. The state that the program
leaves is written first (`state_at_exit`), before the trace's changes are undone; then the graph is
compiled (`trace_graph`), and the entry is put together: guards (`entry_guards`), the call of the graph
(`graph_call`), the state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracer_core import torch_private
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.bytecode.generated_code import define
from tracer_core.debug.logs import enabled, note
from tracer_core.debug.stages import stage
from tracer_core.errors import Location
from tracer_core.execution.capture.result import BreakRecord, Captured, Portable
from tracer_core.execution.entry.codegen import CacheEntry, settings_checks
from tracer_core.execution.entry.entry_guards import EntryGuards
from tracer_core.execution.entry.graph_call import GraphCall
from tracer_core.execution.entry.namespace import runtime_namespace
from tracer_core.execution.entry.object_part import add_guard_caches
from tracer_core.execution.entry.results_and_side_effects import StateAtExit
from tracer_core.execution.entry.trace_graph import TraceGraph
from tracer_core.graph_breaks import Break
from tracer_core.guards.explanation import Failure
from tracer_core.guards.guard import Guard, GuardKind
from tracer_core.guards.own_reference import OwnReference, held
from tracer_core.guards.source import Source
from tracer_core.options import CompileConfig
from tracer_core.trace.tracer import Tracer


class EntryBuilder:
    """Builds one cache entry. Mutable, used once."""

    def __init__(
        self,
        tracer: Tracer,
        state: Any,
        config: CompileConfig,
        settings: torch_private.TorchState,
        name: str,
        behind_break: bool = False,
    ) -> None:
        """behind_break: the region begins at a graph break, whose branch may be predicted."""
        self.tracer, self.settings, self.name = tracer, settings, name
        self.behind_break = behind_break
        self.entry = CacheEntry(tracer.provenance, state)
        self.graph = TraceGraph(tracer, config, name)
        self.state = StateAtExit(tracer, self.entry, self.graph)

    def write(self, value: Any, broken: Break | None) -> None:
        """Writes the state at the return or the break, before the trace's changes are undone."""
        self.state.write(value, broken)

    def finish(self, broken: Break | None, where: Location) -> Captured:
        tracer, entry, state = self.tracer, self.entry, self.state
        runner, gm = self.graph.compile(self.state.used)
        record = None
        if broken is not None and broken.kind != "raises":
            record = BreakRecord(broken.kind, broken.reason, where, where.library)
        # no .py: its names are objects of this process
        with stage("segment", graph=self.name) as stage_record:
            EntryGuards(tracer, entry, self.graph).add()
            if runner is not None:
                call = GraphCall(tracer, entry, self.graph, self.state)
                lines, inputs = entry.graph_inputs([item.source for item in tracer.recorder.inputs])
                dropped = call.drop_gradients()
                entry.body += [*lines, *self._commit("None" if dropped else "graph"), *dropped]
                entry.body += call.lines(inputs, runner)
            else:
                entry.body += self._commit("None")
            entry.body += [*state.rebuilder.lines, *state.effects, *state.rebuilder.late_lines]
            entry.body += [*state.settings(), state.result]
            captured = self._captured(runner, gm, record)
            stage_record.text = captured.text
        return captured

    def _commit(self, run: str) -> list[str]:
        return [f"commit_region(S, {run})"] if self.behind_break else []

    def forget(self) -> None:
        """Breaks the reference cycles between the parts: see `Tracer.forget`."""
        for part in (self.state.rebuilder, self.state, self.entry, self.graph, self):
            vars(part).clear()

    def _captured(
        self, runner: CompiledGraph | None, gm: Any, record: BreakRecord | None
    ) -> Captured:
        entry, tracer = self.entry, self.tracer
        settings = settings_checks(self.settings, entry.constants.text)
        text = entry.text(settings, tracer.side_effects.locks)
        if self.behind_break and not tracer.side_effects.locks:
            text += "entry.commits = True\n"
        graph = None if runner is None else runner.run
        namespace = {**runtime_namespace(text), **entry.constants.namespace, "graph": graph}
        namespace["held"] = tuple(tracer.provenance.held)
        cache_entry = define("entry", text, namespace, self.name)
        entry.constants.is_elsewhere = _always  # of what later explanations name
        add_guard_caches(namespace, entry.roots)
        if self.graph.pending is not None:
            self.graph.pending.scope = namespace
        guards = tuple(map(_held_weakly, tracer.provenance.guards))
        path_constants = held(tuple(tracer.provenance.constants))
        failure = Failure(
            settings, guards, tuple(entry.others), entry.constants, path_constants, namespace
        )
        if enabled("guards"):
            note("guards", "%s:\n%s", self.name, "\n".join(f"  {g}" for g in failure.texts()))
        return Captured(
            entry_function=cache_entry,
            text=text,
            graph=gm,
            op_count=tracer.recorder.op_count,
            break_=record,
            shapes=tracer.shapes.shapes,
            numbers=tracer.shapes.numbers,
            name=self.name,
            constants=entry.constants.namespace,
            runner=runner,
            check_first=failure,
            portable=self._portable(path_constants),
            speculated=tuple(tracer.speculated),
            pending=self.graph.pending,
        )

    def _portable(self, path_constants: tuple[Any, ...]) -> Portable:
        guarded = {
            id(guard.expected): guard.source
            for guard in self.tracer.provenance.guards
            if guard.kind is GuardKind.IS and not guard.source.starts_in_state
        }
        paths: dict[str, Source] = {}
        for name, constant in self.entry.constants.namespace.items():
            obj = constant() if type(constant) is OwnReference else constant
            source = guarded.get(id(obj)) or self.tracer.provenance.source_of(obj)
            if source is not None and source.base is not None and not source.starts_in_state:
                paths[name] = source
        source_of = self.tracer.provenance.source_of
        followed = [item for item in self.tracer.calls.interpreted.values() if source_of(item)]
        return Portable(
            self.entry.roots, paths, held(tuple(followed)), path_constants,
            frozenset(self.entry.constants.exact), torch_private.settings.of_kernels(), tuple(self.tracer.unguarded),
        )  # fmt: skip


def _always(obj: Any) -> bool:
    return True


def _held_weakly(guard: Guard) -> Guard:
    """Returns a guard that keeps no function or class of the program alive."""
    expected = held(guard.expected)
    return guard if expected is guard.expected else replace(guard, expected=expected)
