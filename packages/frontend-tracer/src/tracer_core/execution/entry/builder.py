"""Turns a finished trace into a cache entry: compiles its graph and generates its guards, results
and side effects as Python.

In: a `Tracer` that has run to a return or a break. Out: a `Captured`. Values are written down as
the trace left them, before its changes are undone. If a graph raises, its mutations are undone.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.aot.grad_mode import grad_is_on_in
from tracer_core.aot.static_shapes import has_symbols
from tracer_core.aot.view_aliasing import absolute_offsets
from tracer_core.background.gil_yielding import in_foreground
from tracer_core.bytecode.frame import LazyValue
from tracer_core.bytecode.frame_layout import flatten
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.specs import InputSpec, Role
from tracer_core.debug.logs import enabled, logger, note
from tracer_core.debug.stages import stage
from tracer_core.dispatch import compile_graph
from tracer_core.errors import BackendError
from tracer_core.execution.capture.result import BreakRecord, Captured, Portable
from tracer_core.execution.entry.codegen import CacheEntry, settings_checks
from tracer_core.execution.entry.generated_code import define
from tracer_core.execution.entry.namespace import memories, runtime_namespace
from tracer_core.execution.entry.resume import ResumeFunction
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.execution.tiers import second_use
from tracer_core.execution.tiers.background_entry import (
    MORE_GUARDS,
    Pending,
    SecondUse,
    Sizes,
    may_wait,
    run_eagerly,
)
from tracer_core.fx_capture import element_reads
from tracer_core.fx_capture.dynamic_shapes import constraint_violation, size_conditions
from tracer_core.fx_capture.graph_breaks import Break, Restart, Retry
from tracer_core.fx_capture.may_raise import communicates, may_raise_of, unread_risks
from tracer_core.fx_capture.object_mutations import Content, Gradient, GradientFlag
from tracer_core.fx_capture.provenance import (
    can_be_watched,
    end_is_seen,
    is_known_to_another,
    leads_to_foreign,
    must_outlive_variable,
)
from tracer_core.fx_capture.size_nodes import GraphInput
from tracer_core.fx_capture.unbacked import is_data_size
from tracer_core.fx_capture.wrong_fakes import checks_first_call
from tracer_core.guards.explanation import Failure
from tracer_core.guards.guard import Guard, GuardKind, Relation
from tracer_core.guards.guard_cache import GuardCache
from tracer_core.guards.own_reference import OwnReference, held
from tracer_core.guards.source import Source, SourceKind
from tracer_core.ops.calls import uses_rng
from tracer_core.ops.higher_order.subclass_calls import inner_tensor
from tracer_core.options import CompileConfig
from tracer_core.reconstruct.replay_side_effects import stored_keys
from tracer_core.reconstruct.values import CannotRebuild, Rebuilder
from tracer_core.registry import events
from tracer_core.registry.torch_style import TorchStyle
from tracer_core.torch_private.lazy_graph_module import Deferred
from tracer_core.trace.generators import HOST_ITERATORS
from tracer_core.trace.save_before_mutation import LateCall
from tracer_core.trace.tracer import Tracer

#: Kinds of changes of tensors' own attributes.
_OF_TENSORS = frozenset({Gradient, GradientFlag, Content})


class NotPersistable(Exception):
    """The backend failed on a graph with symbols. what: "numbers" (symbolic scalars) or "sizes"."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class TraceWriter:
    """What is made of a finished trace: its graph, compiled, and the parts of a cache entry. Mutable,
    used once."""

    def __init__(
        self,
        tracer: Tracer,
        state: Any,
        config: CompileConfig,
        settings: torch_private.TorchState,
        name: str,
    ) -> None:
        self.tracer, self.config, self.settings, self.name = tracer, config, settings, name
        self.entry = CacheEntry(tracer.provenance, state)
        self.outputs: dict[torch.fx.Node, int] = {}
        self.replayed: set[int] = set()
        self.effects: list[str] = []
        self.result = ""
        self.pending: Pending | None = None
        #: What the result and the changes are made of.
        self.used_by_program: frozenset[Source] = frozenset()
        #: What `_new_gradients` has found of the graph.
        self.old_gradients: dict[int, Source] = {}
        self.rebuilder = Rebuilder(
            tracer,
            fetch=self.entry.use,
            constant=self.entry.constants.text,
            identical=self.entry.constants.identical,
            output=self._output,
            flush=self._flush,
        )

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

    def forget(self) -> None:
        """Breaks the reference cycles between the parts: see `Tracer.forget`."""
        for part in (self.rebuilder, self.entry, self):
            vars(part).clear()

    def _output(self, value: Any) -> str:
        recorder = self.tracer.recorder
        if isinstance(value, torch.Tensor):
            node = recorder.node_of(value)
        else:
            if not value.node.expr.free_symbols:
                return repr(self.tracer.scalars.concrete(value))
            origin = self.tracer.scalars.origin(value)
            if origin is not None:
                return self.entry.use(origin[1])
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
        return f"y[{self.outputs.setdefault(node, len(self.outputs))}]"

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

    def _settings(self) -> list[str]:
        """Emits the lines that leave torch's settings and contexts as the program did."""
        recorder, constant = self.tracer.recorder, self.entry.constants.text
        lines = [
            f"put_setting({name!r}, {constant(value)})"
            for name, value in self.tracer.settings_after.items()
        ]
        if recorder.autocast_nesting:
            lines.append(f"nest_autocast({recorder.autocast_nesting})")
        return lines + [f"{constant(device)}.__enter__()" for device in recorder.devices]

    # -- the graph --

    def _run_graph(self, inputs: str, runner: CompiledGraph) -> list[str]:
        """Emits the graph call. If the graph raises, its mutations of inputs are undone and the
        program runs in eager mode instead, with its own effects, handlers and exception."""
        if communicates(self.tracer.recorder.graph):
            return [f"y = {self._graph_call(inputs)}"]  # other ranks would not run it again
        mutated = self._mutated_inputs()
        tensors = ", ".join(self.entry.use(item.source) for item in mutated)
        draws = any(uses_rng(node) for node in self.tracer.recorder.graph.nodes)
        arguments = self.tracer.recorder.inputs
        generators = [item.source for item in arguments if isinstance(item.value, torch.Generator)]
        before = []
        if mutated:
            result = self._snapshots(mutated)
            snapshot = self.entry.constants.text(result(runner))
            if self.pending is not None:
                self.pending.snapshot = snapshot, result
            before += [f"kept = {snapshot}.keep(({tensors},))"]
        before += ["rng = rng_state()"] if draws else []
        before += [
            f"rngs = generator_states([{', '.join(map(self.entry.use, generators))}])"
        ] * bool(generators)
        restored = ["set_rng_state(rng)"] * draws
        restored += ["set_generator_states(rngs)"] * bool(generators)
        asserted = []
        if self.tracer.recorder.asserted is not None:
            failed = "return Continuation(GRAPH_RAISED, (AssertionFailed(),))"
            condition = self._output(self.tracer.recorder.asserted)
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
            *([f"    if not {snapshot}.undo(kept, error): raise"] if mutated else []),
            *(f"    {line}" for line in restored),
            "    return Continuation(GRAPH_RAISED, (error,))",
            *asserted,
        ]

    def _graph_call(self, inputs: str) -> str:
        restores = self.tracer.recorder.state_nodes
        return f"run_restoring(graph, {inputs})" if restores else f"graph({inputs})"

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

    def _mutated_inputs(self) -> list[GraphInput]:
        was_written = self.tracer.fakes.was_written
        return [value for value in self._tensor_inputs() if was_written(value.node.meta["val"])]

    def _compile(self) -> tuple[CompiledGraph | None, torch.fx.GraphModule | None]:
        recorder = self.tracer.recorder
        if recorder.op_count == 0 and not self.outputs:
            return None, None
        graph = recorder.graph
        if self.config.backend.ir != "torch":
            recorder.sizes.take_strides(self.tracer.provenance.sources)
        risks = unread_risks(graph, self.outputs)
        as_torch = self.config.backend.ir == "torch"  # nothing is lowered, so that they stay
        graph.output((*self.outputs, *([] if as_torch else self._outputs_of(risks))))
        for node in reversed(list(graph.nodes)):
            if (
                not node.users
                and node not in risks
                and (
                    (node.op == "call_function" and node.target in _UNUSED_GONE)
                    or (node.op == "call_method" and node.target == "item")
                )
            ):
                graph.erase_node(node)
        views = element_reads.why_views(graph) if recorder.copies_elements else None
        if views is not None:
            raise Retry(0, "data_dependent_value", views, copies_elements=False)
        if recorder.data is not None:
            recorder.data.close()
        gm: torch.fx.GraphModule
        if as_torch:  # the backend may change it
            gm = torch.fx.GraphModule({}, graph)
            torch_private.forget_source_with(gm)
        else:
            gm = Deferred({}, graph)
        needs_grad = grad_is_on_in(graph) and self._carries_gradients()
        specs = tuple(map(_input_spec, recorder.inputs))
        values = tuple(value.value for value in recorder.inputs)
        self.old_gradients = self._new_gradients()
        gradients = frozenset(self.old_gradients)
        captured = CapturedGraph(gm, specs, values, needs_grad, self.name, gradients=gradients)
        what = self._could_be_constants(captured)
        checks = checks_first_call(captured)
        try:
            if may_wait(captured, self.config):
                self.pending = self._waiting(captured)
                runner = run_eagerly(captured, self.config)
            elif self._waits_for_second_use(captured):
                runner = run_eagerly(captured, self.config)
                second = SecondUse(runner.run)
                self.pending = self._waiting(captured, second)
                runner = runner.with_run(second)
            else:
                runner = compile_graph.compile_graph(captured, self.config, retries=bool(what))
        except BackendError as error:
            if not what:
                raise
            logger().warning("%s: %s are taken as constants, because %s", self.name, what, error)
            raise NotPersistable(what) from error
        if checks is not None:
            changes = {"mutated_on_error": None, "artifacts": None}
            run = checks(runner.run)
            runner = runner.with_run(run if self.pending is None else in_foreground(run), **changes)
        events.graph_captured(name=self.name, gm=gm, backend=self.config.backend.name)
        return runner, gm

    def _new_gradients(self) -> dict[int, Source]:
        """Returns the outputs that become the ``.grad`` of a tensor whose old one nothing reads:
        index -> where the old one is."""
        tracer, result = self.tracer, {}
        read = self.used_by_program | {value.source for value in tracer.recorder.inputs}
        for change in tracer.effects.changes.values():
            source = tracer.provenance.source_of(change.obj)
            if change.kind is not Gradient or source is None:
                continue
            old = tracer.provenance.sources.make(source, SourceKind.GRAD)
            new = change.after
            node = tracer.recorder.node_of(new) if isinstance(new, torch.Tensor) else None
            if node in self.outputs and old not in read:
                result[self.outputs[node]] = old
        return result

    def _drop_gradients(self) -> list[str]:
        """Emits the lines that drop the gradients which the program replaces without reading them:
        their memory serves the graph, as it does eager's backward. (If the graph raises, the program
        runs in eager mode, and finds them dropped as its own zero_grad() would leave them.)"""
        old = list(self.old_gradients.values())
        if not old:
            return []
        fetched = [name for item in old if (name := self.entry.variable(item))]
        holders = ", ".join(self.entry.use(item.base) for item in old if item.base is not None)
        return [f"drop_gradients(({holders},))", *(f"{name} = None" for name in fetched)]

    def _could_be_constants(self, captured: CapturedGraph) -> str:
        """Returns what the next trace may take as constants if the backend fails on symbols:
        ``"numbers"``, ``"sizes"`` or ``""``."""
        refused, backend = self.tracer.shapes.specializations.refused, self.config.backend
        may_refuse = backend.ir != "torch" or isinstance(backend.compile, TorchStyle)
        numbers = any(isinstance(value, (int, float)) for value in captured.real_inputs)
        if numbers and may_refuse and "numbers" not in refused:
            return "numbers"
        if backend.ir == "torch":
            return ""
        promised = self.tracer.fakes.constraints and not numbers  # by mark_dynamic
        symbolic = numbers or has_symbols(captured.gm)
        return "sizes" if symbolic and not promised and "sizes" not in refused else ""

    def _waits_for_second_use(self, captured: CapturedGraph) -> bool:
        """Returns whether the graph is compiled at its second call; not where branches are
        speculated, which is given up where the graph has no lowered form."""
        shapes = self.tracer.shapes
        speculated = shapes.specializations.outcomes or shapes.speculation.n_answers
        return not speculated and second_use.waits(
            captured, self.config, self.tracer.effects.changes.values()
        )

    def _waiting(self, captured: CapturedGraph, second: SecondUse | None = None) -> Pending:
        """Returns what compiles the graph when the tracer is gone: in the background, or at the
        second call."""
        env = self.tracer.fakes.shape_env
        places = None if env is None else torch_private.guard_locations(env)
        if places is not None:
            places.where = str  # "": the program's line is the lowered node's
        return Pending(captured, self.config, second)

    def _outputs_of(self, risks: list[torch.fx.Node]) -> list[torch.fx.Node]:
        """Returns outputs that the program does not read: results of operators that may raise, which
        lowering would remove."""
        recorder, result = self.tracer.recorder, []
        for node in risks:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor) or uses_rng(node):
                continue
            if torch_private.is_wrapper(value):  # its handlers have run where it is lowered
                continue
            if any(map(is_data_size, value.shape)):
                continue  # an output shows its sizes
            if value.requires_grad:
                meta = {**node.meta, "val": value.detach()}
                node = recorder.graph.call_method("detach", (node,))
                node.meta.update(meta)
            result.append(node)
        return result

    def _carries_gradients(self) -> bool:
        """Returns whether gradients may enter the graph through an output or a mutated input."""
        outputs = [node.meta.get("val") for node in self.outputs]
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in outputs):
            return True
        mutated = [value.node.meta["val"] for value in self._mutated_inputs()]
        return any(fake.requires_grad and not fake.is_leaf for fake in mutated)

    # -- guards --

    def _guards(self) -> None:
        tracer, entry = self.tracer, self.entry
        for guard in tracer.provenance.guards:
            entry.guard(guard)
        for alike in tracer.scalars.alike.values():
            if len(alike) > 1:
                entry.check_alike(alike)
        inputs = {
            value.source: value.node.meta["val"]
            for value in self._non_tensor_inputs()
            if any(isinstance(size, torch.SymInt) for size in value.node.meta["val"].shape)
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
        if self.pending is not None and (inputs or numbers):
            named = {source: entry.use(source) for source in (*inputs, *numbers.values())}
            known = frozenset(condition.text(named.__getitem__) for condition in conditions)
            constraints = tracer.fakes.constraints
            self.pending.sizes = Sizes(env, inputs, numbers, constraints, named, known)
            entry.late_lines.append(MORE_GUARDS)
        for condition in self._offset_conditions():
            entry.check_late(condition)
        # The inputs that a graph mutates must still share memory with the same other inputs, and
        # with the same tensors whose values were read before the graph.
        if self._mutated_inputs():
            tensors = {value.source: value.value for value in self._non_tensor_inputs()}
            tensors |= tracer.recorder.read_early
            places = memories([*tensors.values()])
            entry.check_memory(dict(zip(tensors, places, strict=True)))
        self._distinct_guards()

    def _offset_conditions(self) -> list[Relation]:
        """The storage offsets of inputs in whose memory an ``as_strided`` counts from the beginning:
        lowered, its gradient and what is returned of it count from the input."""
        if self.config.backend.ir == "torch":
            return []
        outputs = (node.meta.get("val") for node in self.outputs)
        returned = {
            torch_private.storage_id(value)
            for value in outputs
            if isinstance(value, torch.Tensor) and value.layout is torch.strided
        }
        counted = [
            base.meta["val"]
            for _, base, offset in absolute_offsets(self.tracer.recorder.graph)
            if offset is not None and isinstance(base, torch.fx.Node)
        ]
        storages = {
            storage
            for value in counted
            if (storage := torch_private.storage_id(value)) in returned or value.requires_grad
        }
        return [
            Relation(f"{{0}}.storage_offset() == {value.value.storage_offset()}", (value.source,))
            for value in (self._non_tensor_inputs() if storages else ())
            if torch_private.storage_id(value.node.meta["val"]) in storages
        ]

    def _tensor_inputs(self) -> list[GraphInput]:
        return [
            value for value in self.tracer.recorder.inputs if isinstance(value.value, torch.Tensor)
        ]

    def _non_tensor_inputs(self) -> list[GraphInput]:
        """Returns the tensor inputs without wrappers, which have no memory, and whose inner tensors
        are inputs too."""
        return [item for item in self._tensor_inputs() if not torch_private.is_wrapper(item.value)]

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
            for other, value in provenance.objects_of(type(holder)):
                if value is not holder:
                    self.entry.check_apart(mine, other)
        alone = [*self.tracer.carried.objects(), *self.tracer.draws.objects()]
        carried: Any = [provenance.source_of(item) for item in alone]
        for item, another in itertools.combinations(carried, 2):
            self.entry.check_apart(item, another)

    # -- the function --

    def _captured(
        self, runner: CompiledGraph | None, gm: Any, record: BreakRecord | None
    ) -> Captured:
        entry, tracer = self.entry, self.tracer
        roots = tuple(entry.roots)
        settings = settings_checks(self.settings, entry.constants.text)
        text = entry.text(settings, tracer.side_effects.locks)
        graph = None if runner is None else runner.run
        namespace = {**runtime_namespace(text), **entry.constants.namespace, "graph": graph}
        namespace["held"] = tuple(tracer.provenance.held)
        cache_entry = define("entry", text, namespace, self.name)
        entry.constants.is_elsewhere = _always  # of what later explanations name
        if entry.object_lines:
            namespace["guard_cache"] = GuardCache(namespace["check"], roots)
        if self.pending is not None:
            self.pending.scope = namespace
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
            portable=self._portable(roots, path_constants),
            pending=self.pending,
        )

    def _portable(self, roots: tuple[int, ...], path_constants: tuple[Any, ...]) -> Portable:
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
            roots, paths, held(tuple(followed)), path_constants,
            frozenset(self.entry.constants.exact), torch_private.settings.of_kernels(), tuple(self.tracer.unguarded),
        )  # fmt: skip


class Generator(TraceWriter):
    """Turns a finished trace into a cache entry. Mutable, used once."""

    def write(self, value: Any, broken: Break | None) -> None:
        """Emits the lines that make the result, or the state at the break, and that replay the
        changes."""
        tracer, entry = self.tracer, self.entry
        entry.replaced, entry.written = frozenset(self._replaced()), frozenset(self._written())
        if tracer.recorder.asserted is not None:
            self._output(tracer.recorder.asserted)
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
            *tracer.carried.steps(entry.use),
            *tracer.draws.steps(entry.use, entry.constants.text),
        ]
        self.effects += [
            self.rebuilder.rewritten(entry.use(at), result) for at, result in tracer.carried.moved()
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
        self.used_by_program = entry.fetched_sources()

    def finish(self, broken: Break | None, where: str) -> Captured:
        tracer, entry = self.tracer, self.entry
        runner, gm = self._compile()
        record = None
        if broken is not None and broken.kind != "raises":
            record = BreakRecord(broken.kind, broken.reason, where)
        with stage("segment", graph=self.name, suffix=".py") as stage_record:
            self._guards()
            if runner is not None:
                lines, inputs = entry.graph_inputs([item.source for item in tracer.recorder.inputs])
                entry.body += [*lines, *self._drop_gradients(), *self._run_graph(inputs, runner)]
            entry.body += [*self.rebuilder.lines, *self.effects, *self.rebuilder.late_lines]
            entry.body += [*self._settings(), self.result]
            captured = self._captured(runner, gm, record)
            stage_record.text = captured.text
        return captured


def _always(obj: Any) -> bool:
    return True


def _held_weakly(guard: Guard) -> Guard:
    """Returns a guard that keeps no function or class of the program alive."""
    expected = held(guard.expected)
    return guard if expected is guard.expected else replace(guard, expected=expected)


def _input_spec(graph_input: GraphInput) -> InputSpec:
    source, tensor, node = graph_input.source, graph_input.value, graph_input.node
    if isinstance(tensor, torch.Generator):
        return InputSpec(node.name, Role.RNG_STATE, source.name)
    if not isinstance(tensor, torch.Tensor):
        role = Role.NUMBER if isinstance(tensor, float) else Role.SIZE
        return InputSpec(node.name, role, source.name)
    role = Role.USER_INPUT
    if isinstance(tensor, torch.nn.Parameter):
        role = Role.PARAMETER
    elif source.is_buffer:
        role = Role.BUFFER
    return InputSpec(node.name, role, source.name, stable_address=role is not Role.USER_INPUT)


_UNUSED_GONE = frozenset({getattr, operator.getitem, inner_tensor})
