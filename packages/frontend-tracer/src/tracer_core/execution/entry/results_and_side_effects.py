"""The state that a finished trace leaves behind, as lines of Python: its result or what is live at a
graph break, its side effects, and torch's settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.bytecode.frame import LazyValue
from tracer_core.bytecode.resume_points import flatten
from tracer_core.execution.entry.codegen import CacheEntry
from tracer_core.execution.entry.resume_function import ResumeFunction
from tracer_core.execution.entry.trace_graph import TraceGraph
from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.object_lifetime import (
    can_be_watched,
    end_is_seen,
    is_known_to_another,
    leads_to_foreign,
    must_outlive_variable,
)
from tracer_core.guards.source import Source
from tracer_core.reconstruct.replay_change import stored_keys
from tracer_core.reconstruct.values import CannotRebuild, Rebuilder
from tracer_core.trace.generators import HOST_ITERATORS
from tracer_core.trace.save_before_mutation import LateCall
from tracer_core.trace.tracer import Tracer


class StateAtExit:
    """Writes the lines. Values are written down as the trace left them. Mutable, used once."""

    def __init__(self, tracer: Tracer, entry: CacheEntry, graph: TraceGraph) -> None:
        self.tracer, self.entry, self.graph = tracer, entry, graph
        #: ids of the changes that the rebuilder's lines replay.
        self.replayed: set[int] = set()
        self.effects: list[str] = []
        self.result = ""
        #: What the result and the changes are made of.
        self.used: frozenset[Source] = frozenset()
        self.rebuilder = Rebuilder(
            tracer,
            fetch=entry.use,
            constant=entry.constants.text,
            identical=entry.constants.identical,
            output=self.output,
            flush=self._flush,
        )

    def write(self, value: Any, broken: Break | None) -> None:
        """Emits the lines that make the result, or the state at the break, and that replay the
        changes."""
        tracer, entry = self.tracer, self.entry
        entry.replaced, entry.written = frozenset(self._replaced()), frozenset(self._written())
        if tracer.recorder.asserted is not None:
            self.output(tracer.recorder.asserted)
        self.rebuilder.suspends = broken is not None
        if broken is None:
            self.result = f"return {self.rebuilder.value(value)}"
        else:
            for live in flatten(tracer.frames, lambda _: False)[1]:
                self.rebuilder.value(live)
        for handle in tracer.side_effects.hooks:
            if handle.removed:
                continue
            if not handle.tensor.is_leaf and tracer.fakes.real_was_written(handle.tensor):
                reason = "a tensor with a hook that was put on it here is written to"
                raise Restart(handle.allocation_step, "autograd_in_graph", reason)
            self.rebuilder.value(handle)
        for change in tracer.effects.changes.values():
            if id(change) not in self.replayed:
                self.effects += entry.effect(self.rebuilder, change)
        self.effects[:0] = [
            *map(self._late_call, tracer.side_effects.late),
            *tracer.live_generators.steps(entry.use),
            *tracer.python_rng.steps(entry.use, entry.constants.text),
        ]
        self.effects += [
            self.rebuilder.rewritten(entry.use(at), result)
            for at, result in tracer.live_generators.moved()
        ]
        if broken is not None:
            layouts, values = flatten(tracer.frames, self._held)
            parts = ", ".join(self.rebuilder.value(v) for v in values)
            raises = broken.reason if broken.kind == "raises" else ""
            resume_function = ResumeFunction(layouts, raises, tracer.recorder.op_count > 0)
            self.result = (
                f"return Continuation({entry.constants.text(resume_function)}, ({parts},))"
            )
            tracer.check_generators(self.rebuilder.has_made)
        self.used = entry.fetched_sources()

    def _flush(self, obj: Any) -> None:
        """Emits the replay of an object's changes among the lines of the rebuilder."""
        for change in self.tracer.effects.changes.values():
            if change.obj is obj and self.effects:
                raise CannotRebuild(
                    "an iterator over a container that changed, inside a change", type(obj)
                )
            if change.obj is obj and id(change) not in self.replayed:
                self.replayed.add(id(change))
                self.rebuilder.lines += self.entry.effect(self.rebuilder, change)

    def output(self, value: Any) -> str:
        recorder = self.tracer.recorder
        if isinstance(value, torch.Tensor):
            node = recorder.node_of(value)
        else:
            origin = self.tracer.scalars.origin(value)
            if origin is not None:
                return self.entry.use(origin[1])
            if not value.node.expr.free_symbols:
                return repr(self.tracer.scalars.concrete(value))
            node = recorder.sizes.node(value.node.expr)
            if not isinstance(node, torch.fx.Node):
                return repr(node)
        inside = recorder.left_inside(value)
        if inside is not None:
            raise Restart(
                inside[0], "higher_order", f"a tensor made inside {inside[1]} is used outside"
            )
        if node is None:
            raise CannotRebuild("a tensor that is no part of the graph", type(value))
        return f"y[{self.graph.output(node)}]"

    def _replaced(self) -> Iterator[Source]:
        """Yields the attributes and entries of dictionaries where the program puts another tensor in
        place of the one that it has read."""
        provenance = self.tracer.provenance
        for change in self.tracer.effects.changes.values():
            source = provenance.source_of(change.obj)
            if source is None or change.kind is not dict:
                continue
            for key, value in change.before.items():
                named = type(key) is str and isinstance(value, torch.Tensor)
                if named and change.after.get(key) is not value:
                    yield provenance.sources.entry(source, key)

    def _written(self) -> Iterator[Source]:
        """Yields the dictionaries from before that the program writes to."""
        for change in self.tracer.effects.changes.values():
            provenance = self.tracer.provenance
            source = provenance.source_of(change.obj)
            if source is None or change.kind is not dict:
                continue
            if change.all_contents or change.removed or stored_keys(change, provenance):
                yield source

    def _late_call(self, late: LateCall) -> str:
        """Returns the line that makes a call from the program's lines."""
        value = self.rebuilder.value
        lines = "".join(
            f"(calling_code{line}, {self.entry.use(source)}), " for line, source in late.lines
        )
        args = "".join(f"{value(arg)}, " for arg in late.args)
        kwargs = ", ".join(f"{name!r}: {value(item)}" for name, item in late.kwargs.items())
        if not late.lines:  # the tracer's own
            return f"{value(late.function)}({args})"
        return f"call_from(({lines}), {value(late.function)}, ({args}), {{{kwargs}}})"

    def _held(self, value: Any) -> bool:
        """Returns whether a dead variable must keep its object alive, because others can reach the
        object and may observe its finalization."""
        if type(value) is LazyValue:
            return must_outlive_variable(value.value)
        if self.tracer.provenance.source_of(value) is not None:
            return must_outlive_variable(value)
        if is_known_to_another(value) or leads_to_foreign(value):
            return True
        watched = isinstance(value, HOST_ITERATORS) or can_be_watched(value)
        return end_is_seen(value) or (self.rebuilder.has_made(value) and watched)

    def settings(self) -> list[str]:
        """Emits the lines that leave torch's settings and contexts as the program did."""
        recorder, constant = self.tracer.recorder, self.entry.constants.text
        lines = [
            f"put_setting({name!r}, {constant(value)})"
            for name, value in self.tracer.settings_after.items()
        ]
        if recorder.autocast_nesting:
            lines.append(f"nest_autocast({recorder.autocast_nesting})")
        return lines + [f"{constant(device)}.__enter__()" for device in recorder.devices]
