"""Lowers a captured torch-level graph to the IR that a backend asks for.

In: an fx.GraphModule of torch functions and methods over tensors, with fake values
(``meta["val"]``) or inputs to make them from. Out: `Lowered`: a functional ATen graph whose only
writes are trailing ``aten.copy_(placeholder, value)`` nodes, its `CompileSpec`, and the plan that
turns a backend's runner for that graph into a runner for the captured one.

The captured graph is interpreted once over functional wrappers of its fakes, under `no_grad`, the
FakeTensorMode and `AtenRecorder`, which records every ATen operator.

What always holds: what has no functional form raises LoweringUnsupported with a reason, before any
graph exists; the ambient autocast and grad modes are restored; guards that the shapes needed are in
the ShapeEnv of the fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot import ctc_loss, view_aliasing
from tracer_core.aot.dead_code import remove_dead_nodes
from tracer_core.aot.equal_values import merge_equal
from tracer_core.aot.fake_values import captured_values
from tracer_core.aot.functionalization import Interpretation
from tracer_core.aot.late_waits import wait_late
from tracer_core.aot.mutated_inputs import input_writes, write_back
from tracer_core.aot.output_aliasing import NotAView, OutputPlan, OutputPlanner, Step, viewed_inputs
from tracer_core.aot.request import Lowered, Request, default_specs, output_specs
from tracer_core.aot.symbolic_sizes import size_origins
from tracer_core.aot.value_check_decompositions import with_requirements
from tracer_core.contract.backend import Backend, resolve
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.specs import InputSpec, Phase, Role
from tracer_core.errors import BackendError
from tracer_core.ops.higher_order import flex_attention
from tracer_core.options import env
from tracer_core.torch_private.lazy_graph_module import Deferred
from tracer_core.torch_private.names import operators
from tracer_core.torch_private.needed import OpOverload

aten = operators("aten")


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a lowering.

    planner: made the ATen graph's outputs. steps: how the captured outputs are made from them.
    mutations: indices of the inputs that are written to.
    """

    planner: OutputPlanner
    steps: tuple[Step, ...]
    mutations: tuple[int, ...]


def lower(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    backend: Backend,
    *,
    input_specs: Sequence[InputSpec] | None = None,
    options: Any = None,
    mode: str = "default",
    name: str = "graph_0",
    phase: Phase = Phase.INFERENCE,
) -> Lowered:
    """Lowers `gm` for `backend`.

    inputs: one per placeholder, real or fake tensors or ints; where placeholders carry
    ``meta["val"]`` those fakes are used. input_specs: one per placeholder (default: all
    `Role.USER_INPUT`). Raises LoweringUnsupported with the reason if the graph has no functional
    form.
    """
    return lower_for(gm, inputs, Request(backend, options, mode, name, phase), input_specs)


def lower_for(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    request: Request,
    input_specs: Sequence[InputSpec] | None,
) -> Lowered:
    """Does `lower` for the backend and the settings of a request."""
    values = captured_values(gm, inputs)
    arguments = [values[node] for node in gm.graph.find_nodes(op="placeholder")]
    specs = tuple(input_specs) if input_specs is not None else default_specs(gm, arguments)
    if request.backend.ir != "torch":
        return Lowering(gm, values, request).run(specs)
    returned = _returned_values(gm, values)
    spec = request.spec(gm, specs, (), output_specs(returned, arguments))
    return Lowered(gm, spec, OutputPlan.of_graph(len(returned)), "torch")


def _returned_values(gm: torch.fx.GraphModule, values: Mapping[torch.fx.Node, Any]) -> list[Any]:
    args = output_args(gm)
    return [values[item] if isinstance(item, torch.fx.Node) else item for item in args]


def verified(lowered: Lowered) -> Lowered:
    """Returns `lowered`; ``TRACER_CHECK=1`` verifies it first."""
    if env().check:
        from tracer_core.aot.verify import verify_lowered  # imported only when checking is on

        verify_lowered(lowered)
    return lowered


def output_args(gm: torch.fx.GraphModule) -> tuple[Any, ...]:
    """Returns a graph's outputs, nodes and constants, as one flat tuple."""
    (output,) = gm.graph.find_nodes(op="output")
    returned = output.args[0]
    flat = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    if any(isinstance(item, (tuple, list, dict)) for item in flat):
        raise LoweringUnsupported(
            "the graph returns a nested structure; captured graphs return a flat tuple"
        )
    return flat


def decomposition_table(backend: Backend) -> dict[Any, Callable[..., Any]]:
    """Returns the decompositions that `backend` asks for.

    They are those of flex_attention and ctc_loss, torch's core ATen table for ``ir="core_aten"``, then the
    backend's own, without its `preserved_ops`. Raises LoweringUnsupported for a kept operator that
    torch expands before it can reach a graph.
    """
    table = flex_attention.DECOMPOSITIONS | ctc_loss.DECOMPOSITIONS
    if backend.ir == "core_aten":
        table |= with_requirements(torch_private.core_aten_table())
    if backend.decompositions is not None:
        table |= _own_decompositions(backend)
    for op_name in backend.preserved_ops:
        try:
            op = operator_named(op_name)
        except AttributeError as error:
            reason = (
                f"preserved_ops names {op_name!r}, which is no operator (one is 'aten.gelu.default'):"
                f" {error}"
            )
            raise BackendError(backend.name, "lower", reason) from error
        if torch_private.is_composite(op):
            raise LoweringUnsupported(
                f"preserved_ops names {op_name}, which PyTorch expands before lowering sees it"
            )
        table.pop(op, None)
    return table


def _own_decompositions(backend: Backend) -> dict[Any, Callable[..., Any]]:
    """Returns the backend's own `decompositions`. Raises BackendError where they are no table of
    operators.
    """
    assert backend.decompositions is not None
    try:
        table = dict(resolve(backend.decompositions)())
    except Exception as error:
        reason = f"its decompositions() raised {type(error).__name__}: {error}"
        raise BackendError(backend.name, "lower", reason) from error
    for op, function in table.items():
        if not isinstance(op, OpOverload) or not callable(function):
            reason = (
                f"its decompositions() has {op!r}: {function!r}; {{torch.ops.aten.gelu.default:"
                " function}"
            )
            raise BackendError(backend.name, "lower", reason)
    return table


def operator_named(name: str) -> Any:
    """Returns the OpOverload of ``"aten.gelu.default"``. Raises AttributeError if there is none."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


class Lowering(Interpretation):
    """One lowering. Mutable."""

    def __init__(
        self, gm: torch.fx.GraphModule, values: Mapping[torch.fx.Node, Any], request: Request
    ) -> None:
        super().__init__(gm, values, decomposition_table(request.backend))
        self.request = request
        #: The nodes before the first gradient that the captured graph computes itself.
        self.forward: tuple[torch.fx.Node, ...] = ()

    def run(self, specs: tuple[InputSpec, ...]) -> Lowered:
        """Interprets the captured graph, then finishes the ATen graph."""
        with self.active():
            ending = self.finish()
        recorder = self.recorder
        merge_equal(self.forward or tuple(recorder.graph.nodes), ending.planner.nodes)
        recorder.graph.output(tuple(ending.planner.nodes))
        remove_dead_nodes(recorder.graph)
        wait_late(recorder.graph)
        graph = Deferred(torch.nn.Module(), recorder.graph, class_name="Lowered")
        outputs = output_specs(ending.planner.values, recorder.inputs)
        inputs = specs + self.extra_specs()
        spec = self.request.spec(graph, inputs, ending.mutations, outputs)
        return verified(Lowered(graph, spec, self.plan(ending), self.request.backend.ir))

    def finish(self) -> Ending:
        """Interprets the captured graph, then adds outputs and writes to inputs."""
        with self.functional():
            self.interpret()
        with torch.no_grad():
            writes = input_writes(self.recorder, self.wrappers, self.gm.graph)
            written = [self.recorder.inputs[index] for index, _ in writes]
            view_aliasing.require_none(self.gm.graph, self.values, written)
            view_aliasing.require_whole_windows(self.gm.graph, self.values, self._is_written)
            view_aliasing.require_no_write_through_expansion(
                self.gm.graph, self.values, self._is_written
            )
            self._require_same_aliases()
            planner = OutputPlanner(
                self.recorder,
                self.recorder.inputs,
                list(self.values.values()),
                lambda value: self.wrappers[id(value)],
                lambda value: viewed_inputs(self.gm.graph, self.values, value),
                self.differentiates,
            )
            try:
                steps = planner.plan(_returned_values(self.gm, self.values))
            except NotAView as error:
                error.nodes = tuple(
                    view_aliasing.views(self.gm.graph, self.values, error.value, error.casts)
                )
                raise
            return Ending(planner, tuple(steps), write_back(self.recorder, writes))

    def plan(self, ending: Ending) -> OutputPlan:
        """Returns how the captured graph's outputs are made from the ATen graph's."""
        recorder = self.recorder
        plan = OutputPlan(
            ending.steps,
            tuple(recorder.constants),
            size_origins(recorder.inputs),
            len(ending.planner.nodes),
        )
        # symbolic sizes of views must have a text form: fail now rather than at the call
        plan.text()
        return plan

    def _is_written(self, value: torch.Tensor) -> bool:
        """Whether the memory of a value of the captured graph is written to."""
        wrapper = self.wrappers[id(value)]
        return torch_private.is_functional(wrapper) and torch_private.has_data_mutation(wrapper)

    def _require_same_aliases(self) -> None:
        """Rejects a graph that writes to memory which aliases differently in functional form.

        Whether `contiguous`, `reshape` and the like return a view depends on strides, and a
        functional value can have other strides than eager's (after a write to an input with gaps
        between its elements, or from a decomposition).
        """
        eager_of: dict[int, int] = {}
        functional_of: dict[int, int] = {}
        written: set[int] = set()
        apart: list[tuple[int, str]] = []
        for eager, wrapper, name in self.pairs:
            item, other = torch_private.storage_id(eager), torch_private.storage_id(wrapper)
            if torch_private.has_data_mutation(wrapper):
                written |= {other, functional_of.get(item, other)}
            same = functional_of.setdefault(item, other) == other
            if not same or eager_of.setdefault(other, item) != item:
                apart += [(other, name), (functional_of[item], name)]
        for storage, name in apart:
            if storage in written:
                raise LoweringUnsupported(
                    f"{name} shares memory that is written to in another way than in eager"
                )

    def extra_specs(self) -> tuple[InputSpec, ...]:
        """Returns an InputSpec for each tensor attribute of the captured graph."""
        first = len(self.gm.graph.find_nodes(op="placeholder"))
        extra = self.recorder.placeholders[first : first + len(self.recorder.constants)]
        is_parameter = [isinstance(item, torch.nn.Parameter) for item in self.recorder.constants]
        roles = [Role.PARAMETER if item else Role.BUFFER for item in is_parameter]
        return tuple(
            InputSpec(node.name, role, node.name, stable_address=True)
            for node, role in zip(extra, roles, strict=True)
        )
