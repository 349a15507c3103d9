"""The guards of a cache entry: those of the trace, of sizes and numbers, of memory that inputs share,
and of objects that must stay different.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

from tracer_core import torch_private
from tracer_core.execution.entry.codegen import CacheEntry
from tracer_core.execution.entry.namespace import memories
from tracer_core.execution.entry.trace_graph import TraceGraph
from tracer_core.execution.tiers.background_entry import (
    MORE_GUARDS,
    Sizes,
)
from tracer_core.fx_capture.dynamic_shapes import constraint_violation, size_conditions
from tracer_core.fx_capture.object_mutations import Content, Gradient, GradientFlag
from tracer_core.guards.source import SourceKind
from tracer_core.trace.tracer import Tracer

#: Kinds of changes of tensors' own attributes.
_OF_TENSORS = frozenset({Gradient, GradientFlag, Content})


class EntryGuards:
    """Adds the guards to an entry."""

    def __init__(self, tracer: Tracer, entry: CacheEntry, graph: TraceGraph) -> None:
        self.tracer, self.entry, self.graph = tracer, entry, graph

    def add(self) -> None:
        """Adds all guards of the trace to the entry."""
        tracer, entry = self.tracer, self.entry
        for guard in tracer.provenance.guards:
            entry.guard(guard)
        for alike in tracer.scalars.alike.values():
            if len(alike) > 1:
                entry.check_alike(alike)
        inputs = {
            value.source: value.node.meta["val"]
            for value in self.graph.inputs_with_memory()
            if torch_private.has_symbols((value.node.meta["val"],))
        }
        broken = constraint_violation(tracer.fakes.shape_env, tracer.fakes.constraints)
        if broken is not None:
            raise broken
        symbols = tracer.recorder.sizes.numbers.items()
        numbers = {symbol: number.source for symbol, number in symbols}
        env, text = tracer.fakes.shape_env, torch_private.python_source
        conditions = size_conditions(env, inputs, numbers, text)
        for condition in conditions:
            entry.check_late(condition)
        if self.graph.pending is not None and (inputs or numbers):
            named = {source: entry.use(source) for source in (*inputs, *numbers.values())}
            known = frozenset(condition.text(named.__getitem__) for condition in conditions)
            constraints = tracer.fakes.constraints
            self.graph.pending.sizes = Sizes(env, inputs, numbers, constraints, named, known)
            entry.late_lines.append(MORE_GUARDS)
        for condition in self.graph.offset_conditions():
            entry.check_late(condition)
        # The inputs that a graph mutates must still share memory with the same other inputs, and
        # with the same tensors whose values were read before the graph.
        if self.graph.mutated_inputs():
            tensors = {value.source: value.value for value in self.graph.inputs_with_memory()}
            tensors |= tracer.recorder.read_early
            places = memories([*tensors.values()])
            entry.check_memory(dict(zip(tensors, places, strict=True)))
        self._distinct_guards()

    def _distinct_guards(self) -> None:
        """Guards that a changed object is not also another object that was read: the trace did not
        see the change there."""
        provenance = self.tracer.provenance
        changes = list(self.tracer.effects.changes.values())
        kinds = {change.kind for change in changes}
        if not kinds.isdisjoint(_OF_TENSORS):
            # One check for all: a model has hundreds of parameters.
            self.entry.check_distinct(
                [source for source, tensor in provenance.tensors.items()
                 if (tensor.requires_grad or not kinds.isdisjoint({GradientFlag, Content}))
                 and provenance.source_of(tensor) is source]
            )  # fmt: skip
        self.entry.check_distinct(provenance.hashed())
        for change in changes:
            if change.kind in _OF_TENSORS:
                continue
            source: Any = provenance.source_of(change.obj)
            is_namespace = source.kind is SourceKind.DICT
            holder = provenance.value_at(source.base) if is_namespace else change.obj
            if holder is None or isinstance(holder, (types.ModuleType, types.FunctionType, type)):
                continue
            mine = source.base if is_namespace else source
            read = provenance.objects_of(type(holder))
            self.entry.check_apart(mine, [other for other, value in read if value is not holder])
        alone = [*self.tracer.live_generators.objects(), *self.tracer.python_rng.objects()]
        carried: Any = [provenance.source_of(item) for item in alone]
        for item, another in itertools.combinations(carried, 2):
            self.entry.check_apart(item, [another])
