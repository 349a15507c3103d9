"""The graph of a finished trace: its outputs, and how it is compiled."""

from __future__ import annotations

import operator

import torch

from tracer_core import torch_private
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.aot.grad_mode import grad_is_on_in
from tracer_core.aot.static_shapes import has_symbols
from tracer_core.aot.view_aliasing import absolute_offsets
from tracer_core.background.gil_yielding import in_foreground
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.specs import InputSpec, Role
from tracer_core.debug.logs import logger
from tracer_core.dispatch import compile_graph
from tracer_core.errors import BackendError
from tracer_core.execution.tiers import second_use
from tracer_core.execution.tiers.background_entry import (
    Pending,
    SecondUse,
    may_wait,
    run_eagerly,
)
from tracer_core.fx_capture import element_reads
from tracer_core.fx_capture.may_raise import unread_risks
from tracer_core.fx_capture.object_mutations import Gradient
from tracer_core.fx_capture.size_nodes import GraphInput
from tracer_core.fx_capture.unbacked import is_data_size
from tracer_core.fx_capture.wrong_fakes import checks_first_call
from tracer_core.graph_breaks import Retry
from tracer_core.guards.guard import Relation
from tracer_core.guards.source import Source, SourceKind
from tracer_core.ops.calls import uses_rng
from tracer_core.ops.higher_order.subclass_calls import inner_tensor
from tracer_core.options import CompileConfig
from tracer_core.registry import events
from tracer_core.registry.torch_style import TorchStyle
from tracer_core.torch_private.lazy_graph_module import Deferred
from tracer_core.trace.tracer import Tracer


class SymbolsUnsupported(Exception):
    """The backend failed on a graph with symbols. what: "numbers" (symbolic scalars) or "sizes"."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class TraceGraph:
    """The graph of a finished trace. Mutable, used once."""

    def __init__(self, tracer: Tracer, config: CompileConfig, name: str) -> None:
        self.tracer, self.config, self.name = tracer, config, name
        #: Node -> its position among the outputs that the program reads.
        self.outputs: dict[torch.fx.Node, int] = {}
        #: Compiles the graph later.
        self.pending: Pending | None = None
        #: Output -> where the gradient is that it replaces.
        self.old_gradients: dict[int, Source] = {}

    def output(self, node: torch.fx.Node) -> int:
        """Returns the position of a node among the outputs; adds it if it is none yet."""
        return self.outputs.setdefault(node, len(self.outputs))

    def compile(
        self, used: frozenset[Source]
    ) -> tuple[CompiledGraph | None, torch.fx.GraphModule | None]:
        recorder = self.tracer.recorder
        if recorder.op_count == 0 and not self.outputs:
            return None, None
        graph = recorder.graph
        if self.config.backend.ir != "torch":
            recorder.sizes.take_undetermined(self.tracer.provenance.sources)
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
        self.old_gradients = self._new_gradients(used)
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
            raise SymbolsUnsupported(what) from error
        if checks is not None:
            changes = {"mutated_on_error": None, "artifacts": None}
            run = checks(runner.run)
            runner = runner.with_run(run if self.pending is None else in_foreground(run), **changes)
        events.graph_captured(name=self.name, gm=gm, backend=self.config.backend.name)
        return runner, gm

    def _new_gradients(self, used: frozenset[Source]) -> dict[int, Source]:
        """Returns the outputs that become the ``.grad`` of a tensor whose old one nothing reads:
        index -> where the old one is."""
        tracer, result = self.tracer, {}
        read = used | {value.source for value in tracer.recorder.inputs}
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
        mutated = [value.node.meta["val"] for value in self.mutated_inputs()]
        return any(fake.requires_grad and not fake.is_leaf for fake in mutated)

    def offset_conditions(self) -> list[Relation]:
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
            for value in (self.inputs_with_memory() if storages else ())
            if torch_private.storage_id(value.node.meta["val"]) in storages
        ]

    def mutated_inputs(self) -> list[GraphInput]:
        was_written = self.tracer.fakes.was_written
        return [value for value in self.tensor_inputs() if was_written(value.node.meta["val"])]

    def tensor_inputs(self) -> list[GraphInput]:
        return [
            value for value in self.tracer.recorder.inputs if isinstance(value.value, torch.Tensor)
        ]

    def inputs_with_memory(self) -> list[GraphInput]:
        """Returns the tensor inputs without wrappers, which have no memory, and whose inner tensors
        are inputs too."""
        return [item for item in self.tensor_inputs() if not torch_private.is_wrapper(item.value)]


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
