"""The lines of a cache entry that call its graph, and undo what a graph that raises has done."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.debug.profiling import label
from tracer_core.execution.entry.codegen import CacheEntry
from tracer_core.execution.entry.results_and_side_effects import StateAtExit
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.execution.entry.trace_graph import TraceGraph
from tracer_core.fx_capture.may_raise import communicates, may_raise_of
from tracer_core.fx_capture.size_nodes import GraphInput
from tracer_core.ops.calls import takes_random
from tracer_core.torch_private.needed import PROFILING
from tracer_core.trace.tracer import Tracer


class GraphCall:
    """Writes the lines."""

    def __init__(
        self, tracer: Tracer, entry: CacheEntry, graph: TraceGraph, state: StateAtExit
    ) -> None:
        self.tracer, self.entry, self.graph, self.state = tracer, entry, graph, state

    def lines(self, inputs: str, runner: CompiledGraph) -> list[str]:
        """Emits the graph call. If the graph raises, its mutations of inputs are undone and the
        program runs in eager mode instead, with its own effects, handlers and exception."""
        if communicates(self.tracer.recorder.graph):
            return [f"y = {self._graph_call(inputs)}"]  # other ranks would not run it again
        mutated = self.graph.mutated_inputs()
        tensors = ", ".join(self.entry.use(item.source) for item in mutated)
        is_random = any(takes_random(node) for node in self.tracer.recorder.graph.nodes)
        arguments = self.tracer.recorder.inputs
        generators = [item.source for item in arguments if isinstance(item.value, torch.Generator)]
        before = []
        if mutated:
            result = self._snapshots(mutated)
            snapshot = self.entry.constants.text(result(runner))
            if self.graph.pending is not None:
                self.graph.pending.snapshot = snapshot, result
            before += [f"saved = {snapshot}.save(({tensors},))"]
        before += ["rng = rng_state()"] if is_random else []
        before += [
            f"rngs = generator_states([{', '.join(map(self.entry.use, generators))}])"
        ] * bool(generators)
        restored = ["set_rng_state(rng)"] * is_random
        restored += ["set_generator_states(rngs)"] * bool(generators)
        asserted = []
        if self.tracer.recorder.asserted is not None:
            failed = "return Continuation(GRAPH_RAISED, (AssertionFailed(),))"
            condition = self.state.output(self.tracer.recorder.asserted)
            asserted = [f"if not {condition}:", *(f"    {line}" for line in (*restored, failed))]
        return [
            *before,
            f"try: y = {self._graph_call(inputs)}",
            # the backend is at fault; the program has no handler for it
            "except TracerError: raise",
            "except Exception as error:",
            # the program's own: a second run would call its hooks again
            f"    if raised_by_saved_tensors_hook(error, {self.tracer.recorder.in_try}):",
            "        return Continuation(HOOK_RAISED, (error,))",
            *([f"    if not {snapshot}.undo(saved, error): raise"] if mutated else []),
            *(f"    {line}" for line in restored),
            "    return Continuation(GRAPH_RAISED, (error,))",
            *asserted,
        ]

    def _graph_call(self, inputs: str) -> str:
        """Returns the call of the graph, a row of the profile where a profiler is active."""
        frames = (node.meta.get("user_frame", "") for node in self.tracer.recorder.graph.nodes
                  if node.op in ("call_function", "call_method"))  # fmt: skip
        row = label(self.graph.name, frames)
        graph = f"(profiled(graph, {row!r}) if profiler_state[{PROFILING!r}] else graph)"
        if not self.tracer.recorder.state_nodes:
            return f"{graph}({inputs})"
        # "grad": of inference mode, too
        written = tuple(sorted({"grad", *self.tracer.recorder.settings_written}))
        return f"run_restoring({written!r}, {graph}, {inputs})"

    def _snapshots(self, mutated: list[GraphInput]) -> Callable[[CompiledGraph], InputSnapshot]:
        """Returns what makes the snapshot of mutated inputs for a compiled graph: it copies those
        that the graph may already have mutated when one of its operators raises."""
        recorder, storage = self.tracer.recorder, torch_private.storage_id
        storages = [storage(item.node.meta["val"]) for item in mutated]
        inputs = [storage(value.node.meta["val"]) if isinstance(value.value, torch.Tensor) else None
                 for value in recorder.inputs]  # fmt: skip
        graph = recorder.graph

        def snapshot(runner: CompiledGraph) -> InputSnapshot:
            lowered = runner.artifacts is not None and runner.artifacts.runs_alone
            early: Collection[Any]
            if runner.mutated_on_error is None:
                risks = may_raise_of(graph)
                early = risks.lowered if lowered else risks.in_order
            else:
                early = {inputs[index] for index in runner.mutated_on_error if index < len(inputs)}
            always = {i for i, storage in enumerate(storages) if storage in early}
            return InputSnapshot(frozenset(always), not lowered or bool(always))

        return snapshot

    def drop_gradients(self) -> list[str]:
        """Emits the lines that drop the gradients which the program replaces without reading them:
        their memory serves the graph, as it does eager's backward. (If the graph raises, the program
        runs in eager mode, and finds them dropped as its own zero_grad() would leave them.)"""
        old = list(self.graph.old_gradients.values())
        if not old:
            return []
        fetched = [name for item in old if (name := self.entry.variable(item))]
        holders = ", ".join(self.entry.use(item.base) for item in old if item.base is not None)
        return [f"drop_gradients(({holders},))", *(f"{name} = None" for name in fetched)]
