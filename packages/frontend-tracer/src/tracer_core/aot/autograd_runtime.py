"""Runs a compiled forward and a compiled backward as one autograd node.

The runner that `training_runner` makes for a captured graph returns outputs with an autograd
history like eager's; their backward runs the backend's backward graph, which is compiled when it is
first needed.

Saved tensors are autograd's: it checks their versions, frees them with the graph, and keeps them
for ``retain_graph``. A double backward differentiates the captured graph eagerly. Ambient autocast
does not cast inside the forward or the backward again.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.aten_recorder import memory_order
from tracer_core.aot.ddp_backward import Backward, Replicas, Run, Step, uncast
from tracer_core.aot.ddp_buckets import Part
from tracer_core.aot.double_backward import Differentiated
from tracer_core.aot.errors import LoweringUnsupported
from tracer_core.aot.fake_values import captured_values
from tracer_core.aot.joint_graph import Joint, JointLowering
from tracer_core.aot.lazy_graph_module import Deferred
from tracer_core.aot.lower import output_args, verified
from tracer_core.aot.output_aliasing import OutputPlan
from tracer_core.aot.partitioner import Partitioner, Split
from tracer_core.aot.request import Lowered, Request, output_specs
from tracer_core.aot.symbolic_sizes import SYM_TYPES, size_reader
from tracer_core.contract.backend import resolve
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec, InputSpec, Phase, Role
from tracer_core.debug.graph_names import derived_name
from tracer_core.debug.stages import continued, stage
from tracer_core.errors import BackendError
from tracer_core.torch_private.names import names


@dataclass(frozen=True, slots=True)
class TrainingGraphs:
    """The graphs of one training lowering.

    forward, backward: as a backend gets them. split: what passes from one to the other. joint: the
    joint graph. request: for which the backward was lowered. of_outputs: lowers the backward for
    calls in which some outputs alone get a tangent.
    """

    forward: Lowered
    backward: Lowered
    split: Split
    joint: Joint
    request: Request
    of_outputs: Callable[[Collection[int]], tuple[Lowered, Split]]


def lower_training(captured: CapturedGraph, request: Request) -> TrainingGraphs:
    """Returns the forward and the backward graph of a captured graph.

    Raises LoweringUnsupported with the reason if one of them has no functional form.
    """
    values = captured_values(captured.gm, captured.real_inputs, grad=True)
    lowering = JointLowering(captured.gm, values, request, captured.real_inputs)
    joint = lowering.joint(captured.inputs)
    budget = getattr(request.options, "memory_budget", 1.0)
    choose = resolve(request.backend.partition)
    partitioner = Partitioner(joint, budget, choose, request.backend.fuses)
    try:
        split = partitioner.split()
    except Exception as error:
        if choose is None:
            raise
        detail = f"{request.name}: {type(error).__name__}: {error}"
        raise BackendError(request.backend.name, "partition", detail) from error
    forward = _lowered(
        split.forward, joint.inputs, joint.mutations, replace(request, phase=Phase.FORWARD)
    )
    forward = replace(forward, spec=_with_saved(forward.spec, split.outputs))
    name = derived_name(request.name, "backward")
    later = replace(request, phase=Phase.BACKWARD, name=name)
    backward = _lowered(split.backward, _backward_inputs(split, joint), (), later)

    def of_outputs(outputs: Collection[int]) -> tuple[Lowered, Split]:
        part = lowering.joint_of(joint, outputs)
        found = partitioner.split_of(part)
        text = "_".join(map(str, sorted(outputs)))
        own = replace(later, name=derived_name(later.name, f"of_{text}"))
        return _lowered(found.backward, _backward_inputs(found, part), (), own), found

    return TrainingGraphs(forward, backward, split, joint, later, of_outputs)


def _with_saved(spec: CompileSpec, visible: int) -> CompileSpec:
    """Marks the outputs of `spec` after the first `visible` ones as saved for the backward."""
    saved = (replace(one, saved=True) for one in spec.outputs[visible:])
    return replace(spec, outputs=(*spec.outputs[:visible], *saved))


def _lowered(
    graph: torch.fx.Graph,
    inputs: tuple[InputSpec, ...],
    mutations: tuple[int, ...],
    request: Request,
) -> Lowered:
    gm = Deferred(torch.nn.Module(), graph, class_name=request.phase.value.title())
    (output,) = graph.find_nodes(op="output")
    returned = [node.meta["val"] for node in output.args[0]]
    given = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    spec = request.spec(gm, inputs, mutations, output_specs(returned, given))
    plan = OutputPlan.of_graph(len(returned))
    return verified(Lowered(gm, spec, plan, request.backend.ir))


def _backward_inputs(split: Split, joint: Joint) -> tuple[InputSpec, ...]:
    placeholders = split.backward.find_nodes(op="placeholder")
    saved = len(split.saved_inputs) + len(split.saved_outputs)
    specs = [
        replace(joint.inputs[index], name=node.name)
        for node, index in zip(placeholders, split.saved_inputs, strict=False)
    ]
    for position, node in enumerate(placeholders[len(specs) :], len(specs)):
        later = Role.SIZE if isinstance(node.meta["val"], SYM_TYPES) else Role.USER_INPUT
        role = Role.SAVED_ACTIVATION if position < saved else later
        specs.append(InputSpec(node.name, role, node.name))
    return tuple(specs)


def take_channels_last(backward: Lowered, split: Split, outputs: Collection[int]) -> None:
    """Tells a backward graph, before it is compiled, which saved outputs of the forward are
    channels-last.
    """
    if not outputs:
        return
    placeholders = backward.graph.graph.find_nodes(op="placeholder")
    saved = placeholders[len(split.saved_inputs) :]
    for node, number in zip(saved, split.saved_outputs, strict=False):
        if number in outputs:
            with node.meta["val"].fake_mode:
                node.meta["val"] = node.meta["val"].contiguous(memory_format=torch.channels_last)


def lower_step(captured: CapturedGraph, request: Request) -> Lowered:
    """Returns the ATen graph of a captured graph that computes gradients itself, for instance a
    training step.

    Raises LoweringUnsupported with the reason if it has no functional form.
    """
    values = captured_values(captured.gm, captured.real_inputs, grad=True)
    return JointLowering(captured.gm, values, request, captured.real_inputs).run(captured.inputs)


class UsedUp(torch.autograd.Function):
    """The autograd node of a value whose graph was freed by a backward inside the captured
    graph.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        """Returns the value itself, which requires grad from now on."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor) -> Any:
        """Raises the error that eager raises."""
        raise RuntimeError(
            f"{torch_private.FREED} (or directly access saved tensors after they have already been"
            " freed). It was freed when the compiled function called .backward() or"
            " autograd.grad(). Specify retain_graph=True there if you need to backward through the"
            " graph a second time."
        )


def with_used_up(captured: CapturedGraph, run: RunFunction) -> RunFunction:
    """Makes the outputs require grad that do so in eager although their autograd graph was
    freed.
    """
    wanted = [
        i
        for i, node in enumerate(output_args(captured.gm))
        if isinstance(node, torch.fx.Node) and getattr(node.meta["val"], "requires_grad", False)
    ]
    if not wanted:
        return run
    anchor = torch.zeros((), requires_grad=True)
    apply = torch_private.direct_apply(UsedUp)

    def call(inputs: list[Any]) -> Sequence[Any]:
        outputs = list(run(inputs))
        for index in wanted:
            if not outputs[index].requires_grad:
                outputs[index] = apply(outputs[index], anchor)
        return outputs

    return call


class LazyRunner:
    """A runner that is compiled at its first call. Mutable: keeps the compiled runner.

    record: makes a context in which stages belong to the compilation (default: the current one).
    """

    def __init__(
        self,
        compile_now: Callable[[], RunFunction],
        record: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self._compile: Callable[[], RunFunction] | None = compile_now
        self._record = record or continued()
        self._lock = threading.Lock()
        self._runner: RunFunction | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        runner = self._runner
        if runner is None:
            with self._record():
                runner = self.compiled()
        return runner(inputs)

    def compiled(self) -> RunFunction:
        """Returns the compiled runner; compiles it unless another thread has done so."""
        with self._lock:
            if self._runner is None:
                assert self._compile is not None
                self._runner = self._compile()
                self._compile = None  # frees the graphs that it holds
            return self._runner


def training_runner(
    captured: CapturedGraph,
    graphs: TrainingGraphs,
    run_forward: RunFunction,
    channels_last: Collection[int],
    compile_backward: Callable[[Lowered], RunFunction],
    at_once: bool = False,
) -> RunFunction:
    """Returns a runner for the captured graph, given a runner for the forward, the saved outputs
    that it returns channels-last, and a compiler for backward graphs. at_once: compiles the whole
    backward now, not when it first runs.
    """
    joint = graphs.joint
    run_forward = in_its_grad_mode(joint.forward, run_forward)
    backwards = Backwards(graphs, channels_last, compile_backward)
    if at_once:
        backwards.compile_whole()
    step = _step(captured, graphs, run_forward, backwards)
    apply = torch_private.direct_apply(_function(captured.name, step))
    leaves_of = _items(joint.differentiable)
    replicas = Replicas(captured.name, step, apply)
    active_replica = torch_private.active_replica

    def run(args: list[Any]) -> Sequence[Any]:
        replica = active_replica()
        if replica is None:
            return apply(args, *leaves_of(args))  # type: ignore[no-any-return]
        return replicas.run(replica, args, leaves_of(args))

    return joint.plan.bind(run)


class Backwards:
    """The backwards of one graph. Mutable: one for some outputs alone is lowered when a call first
    has tangents for just these; zeros for the others would not do, because autograd runs none of
    their nodes (0 * inf is NaN; a hook may return anything for zeros).
    """

    def __init__(
        self,
        graphs: TrainingGraphs,
        channels_last: Collection[int],
        compile_now: Callable[[Lowered], RunFunction],
    ) -> None:
        # with a single tangent there is no other set, and the joint graph can go
        self._lower = graphs.of_outputs if len(graphs.split.tangents) > 1 else None
        self._request = graphs.request
        self._device = graphs.forward.spec.device
        self._channels_last, self._compile_now = channels_last, compile_now
        self._record, self._lock = continued(), threading.Lock()
        #: The runner of `whole`, the first one made.
        self._first: LazyRunner | None = None
        self.whole = self._backward(graphs.backward, graphs.split)
        self._of_outputs: dict[tuple[int, ...], Backward | None] = {}

    def compile_whole(self) -> None:
        """Compiles the backward for all tangents, which else happens when it first runs."""
        assert self._first is not None
        self._first.compiled()

    def of(self, tangents: Sequence[torch.Tensor | None]) -> Backward | None:
        """Returns the backward for the tangents that are there; None if no graph computes it."""
        whole = self.whole
        outputs = tuple([index for index in whole.tangents if tangents[index] is not None])
        if len(outputs) == len(whole.tangents):
            return whole
        assert self._lower is not None
        with self._lock:
            if outputs not in self._of_outputs:
                try:
                    with self._record(), stage("lower", graph=self._request.name):
                        found = self._backward(*self._lower(outputs))
                except LoweringUnsupported:
                    found = None
                self._of_outputs[outputs] = found
            return self._of_outputs[outputs]

    def _backward(self, lowered: Lowered, split: Split) -> Backward:
        take_channels_last(lowered, split, self._channels_last)
        inputs, name, compile_now = lowered.spec.inputs, lowered.spec.name, self._compile_now

        def compile_part(part: Part, number: int) -> RunFunction:
            names = [node.name for node in part.graph.find_nodes(op="placeholder")]
            specs = tuple(
                inputs[at] if at < len(inputs) else InputSpec(name, Role.SAVED_ACTIVATION, name)
                for at, name in zip(part.takes, names, strict=True)
            )
            request = replace(self._request, name=derived_name(name, f"part_{number}"))
            return lazily(_lowered(part.graph, specs, (), request))

        def lazily(lowered: Lowered) -> RunFunction:
            made = LazyRunner(lambda: compile_now(lowered), self._record)
            self._first = self._first or made
            return made

        run = uncast(self._device, lazily(lowered))
        graph = lowered.graph.graph
        return Backward(graph, split.tangents, split.gradients, run, compile_part)


#: Operators whose kernels return what their backward needs only while grad mode is on.
GRAD_MODE_KERNELS = frozenset(names("ops.aten.mkldnn_rnn_layer.default"))


def in_its_grad_mode(nodes: Iterable[torch.fx.Node], run: RunFunction) -> RunFunction:
    """Runs with grad mode on, but without recording, if a kernel of the graph needs that."""
    if not any(node.target in GRAD_MODE_KERNELS for node in nodes):
        return run

    def in_grad_mode(inputs: list[Any]) -> Sequence[Any]:
        with torch_private.grad_mode_without_graph():
            return run(inputs)

    return in_grad_mode


#: What a backward without a graph of its own is asked for.
_OF_SOME = "the gradient of some outputs alone"


def _step(
    captured: CapturedGraph,
    graphs: TrainingGraphs,
    run_forward: RunFunction,
    backwards: Backwards,
) -> Step:
    """Returns the behavior of the autograd node for the whole graph."""
    split, joint = graphs.split, graphs.joint
    count = split.outputs
    plain = tuple(i for i, node in enumerate(joint.tangents) if node is None)
    inputs_of, outputs_of, plain_of = map(_items, (split.saved_inputs, split.saved_outputs, plain))
    origins = joint.plan.origins
    sizes_of = size_reader(origins[size.node.expr] for size in split.sizes)
    fits = {index: _fit(split.forward, index) for index in split.tangents}
    again = Differentiated(captured, joint)

    def forward(ctx: Any, args: list[Any], *leaves: torch.Tensor | None) -> Any:
        kept = inputs_of(args)
        ctx.sizes = sizes_of(args)
        again.remember(ctx, args)
        out = list(run_forward(args))
        # A view returned by a Function may not be written to. A detached tensor is no view, and
        # still shares its version counter.
        out[:count] = [one.detach() if one._is_view() else one for one in out[:count]]
        again.remember_versions(ctx)
        ctx.save_for_backward(*kept, *outputs_of(out))
        ctx.mark_non_differentiable(*plain_of(out))
        ctx.set_materialize_grads(False)
        return tuple(out[:count])

    def opened(ctx: Any, tangents: Any) -> Run:
        if torch.is_grad_enabled():
            return Run(None, (), [], again.gradients(ctx, tangents))
        if all(one is None for one in tangents):  # an autograd node of the program gave none
            return Run(None, (), [], [None] * len(joint.differentiable))
        if any(one is not None and torch_private.is_batched(one) for one in tangents):
            return Run(None, (), [], again.gradients_alone(ctx, tangents, "a batch of gradients"))
        backward = backwards.of(tangents)
        if backward is None:
            return Run(None, (), [], again.gradients_alone(ctx, tangents, _OF_SOME))
        fitted = [fits[index](tangents[index]) for index in backward.tangents]
        values = [*ctx.saved_tensors, *ctx.sizes, *fitted]
        torch_private.let_go_of_saved_tensors(ctx)
        return Run(backward, fitted, values)

    return Step(forward, opened, backwards.whole, graphs.forward.spec.device)


def _function(name: str, step: Step) -> type[torch.autograd.Function]:
    """Returns one autograd Function for the whole graph."""
    opened = step.opened

    class CompiledGraph(torch.autograd.Function):
        forward = staticmethod(step.forward)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            return (None, *opened(ctx, tangents).whole())

    CompiledGraph.__name__ = CompiledGraph.__qualname__ = f"Compiled_{name}"
    return CompiledGraph


def _items(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a function that picks these items, always as a tuple."""
    if not indices:
        return lambda values: ()
    if len(indices) == 1:
        (index,) = indices
        return lambda values: (values[index],)
    return operator.itemgetter(*indices)


def _written_out(tangent: torch.Tensor) -> torch.Tensor:
    """Resolves lazy conjugation and negation, so that the tensor's memory holds its values."""
    if type(tangent) is not torch.Tensor:
        tangent = torch_private.waited(tangent)
    lazy = tangent.is_neg() or tangent.is_conj()
    return tangent.resolve_neg().resolve_conj() if lazy else tangent


def _fit(forward: torch.fx.Graph, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function that gives a tangent the layout of its output, for which the backward was
    compiled.
    """
    (output,) = forward.find_nodes(op="output")
    value = output.args[0][index].meta["val"]
    order = memory_order(value)
    if order == list(range(len(order))):
        return lambda tangent: _written_out(tangent).contiguous()
    inverse = sorted(order, key=order.__getitem__)

    def permuted(tangent: torch.Tensor) -> torch.Tensor:
        packed = _written_out(tangent).permute(order)
        return tangent if packed.is_contiguous() else packed.contiguous().permute(inverse)

    return permuted
