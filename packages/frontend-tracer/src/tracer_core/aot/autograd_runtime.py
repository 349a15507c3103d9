"""Runs a compiled forward and a compiled backward as one autograd node.

The runner that `training_node` makes for a captured graph returns outputs with an autograd
history like eager's; their backward runs the backend's backward graph, which is compiled when it is
first needed.

Saved tensors are autograd's: it checks their versions, frees them with the graph, and keeps them
for ``retain_graph``. A double backward differentiates the captured graph eagerly, with the random
numbers of the forward. Ambient autocast does not cast inside the forward or the backward again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.ambient_modes import uncast
from tracer_core.aot.aten_recorder import memory_order
from tracer_core.aot.autograd_node import (
    Backward,
    NodePlan,
    autograd_function,
    items,
    node_step,
)
from tracer_core.aot.ddp_backward import Replicas
from tracer_core.aot.ddp_buckets import Part
from tracer_core.aot.double_backward import recompute_forward
from tracer_core.aot.equal_values import merge_equal
from tracer_core.aot.fake_values import captured_values
from tracer_core.aot.joint_graph import Joint, JointLowering
from tracer_core.aot.lower import output_args, verified
from tracer_core.aot.output_aliasing import OutputPlan
from tracer_core.aot.partitioner import Partitioner, Split
from tracer_core.aot.recompute_forward import RecomputeForward
from tracer_core.aot.request import Lowered, Request, output_specs
from tracer_core.aot.softmax_recomputation import with_statistics
from tracer_core.aot.symbolic_sizes import SYM_TYPES
from tracer_core.contract.backend import resolve
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec, InputSpec, Phase, Role
from tracer_core.debug.graph_names import derived_name
from tracer_core.debug.stages import continued, stage
from tracer_core.errors import BackendError
from tracer_core.torch_private.lazy_graph_module import Deferred
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
    joint = replace(lowering.joint(captured.inputs), written_later=captured.written_later)
    merged = merge_equal(lowering.forward or joint.forward, joint.outputs)
    joint = replace(joint, forward=tuple(node for node in joint.forward if node not in merged))
    budget = getattr(request.options, "memory_budget", 1.0)
    choose = resolve(request.backend.partition)
    if request.backend.fuses and choose is None:
        joint = with_statistics(joint)
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
        for node, first in merged.items():
            node.replace_all_uses_with(first)
        split = partitioner.split_of(part)
        text = "_".join(map(str, sorted(outputs)))
        own = replace(later, name=derived_name(later.name, f"of_{text}"))
        return _lowered(split.backward, _backward_inputs(split, part), (), own), split

    return TrainingGraphs(forward, backward, split, joint, later, of_outputs)


def _with_saved(spec: CompileSpec, visible: int) -> CompileSpec:
    """Marks the outputs of `spec` after the first `visible` ones as saved for the backward."""
    saved = (replace(output, saved=True) for output in spec.outputs[visible:])
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
    arguments = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    spec = request.spec(gm, inputs, mutations, output_specs(returned, arguments))
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


@dataclass(frozen=True, slots=True)
class TrainingNode:
    """run: the captured graph, as one autograd node. plan, again, backwards: what it is made of."""

    run: RunFunction
    plan: NodePlan
    again: RecomputeForward
    backwards: LoweredBackwards


def training_node(
    captured: CapturedGraph,
    graphs: TrainingGraphs,
    run_forward: RunFunction,
    channels_last: Collection[int],
    compile_backward: Callable[[Lowered], RunFunction],
    at_once: bool = False,
) -> TrainingNode:
    """Returns the captured graph as one autograd node, given a runner for the forward, the saved
    outputs that it returns channels-last, and a compiler for backward graphs. at_once: compiles the
    whole backward now, not when it first runs.
    """
    joint, plan = graphs.joint, _plan(graphs.split, graphs.joint)
    again = recompute_forward(captured, joint, graphs.split)
    backwards = LoweredBackwards(graphs, channels_last, compile_backward)
    if at_once:
        backwards.compile_whole()
    step = node_step(plan, run_forward, backwards, again, graphs.forward.spec.device)
    apply = torch_private.direct_apply(autograd_function(captured.name, step))
    leaves_of = items(joint.differentiable)
    replicas = Replicas(captured.name, step, apply)
    active_replica = torch_private.active_replica

    def run(args: list[Any]) -> Sequence[Any]:
        replica = active_replica()
        if replica is None:
            return apply(args, *leaves_of(args))  # type: ignore[no-any-return]
        return replicas.run(replica, args, leaves_of(args))

    return TrainingNode(joint.plan.bind(plan.watching(run)), plan, again, backwards)


class LoweredBackwards:
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
        #: Name of a backward graph -> its tangents and gradients.
        self.names: dict[str, tuple[tuple[int, ...], tuple[int | None, ...]]] = {}
        self.full = self._backward(graphs.backward, graphs.split)
        self._of_outputs: dict[tuple[int, ...], Backward | None] = {}

    def compile_whole(self) -> None:
        """Compiles the backward for all tangents, which else happens when it first runs."""
        assert self._first is not None
        self._first.compiled()

    def of(self, tangents: Sequence[torch.Tensor | None]) -> Backward | None:
        """Returns the backward for the tangents that are there; None if no graph computes it."""
        full = self.full
        outputs = tuple([index for index in full.tangents if tangents[index] is not None])
        if len(outputs) == len(full.tangents):
            return full
        assert self._lower is not None
        with self._lock:
            if outputs not in self._of_outputs:
                try:
                    with self._record(), stage("lower", graph=self._request.name):
                        result = self._backward(*self._lower(outputs))
                except LoweringUnsupported:
                    result = None
                self._of_outputs[outputs] = result
            return self._of_outputs[outputs]

    def _backward(self, lowered: Lowered, split: Split) -> Backward:
        take_channels_last(lowered, split, self._channels_last)
        self.names[lowered.spec.name] = split.tangents, split.gradients
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
            runner = LazyRunner(lambda: compile_now(lowered), self._record)
            self._first = self._first or runner
            return runner

        run = uncast(self._device, lazily(lowered))
        graph = lowered.graph.graph
        return Backward(split.tangents, split.gradients, run, graph, compile_part)


#: Operators whose kernels return what their backward needs only while grad mode is on.
GRAD_MODE_KERNELS = frozenset(names("ops.aten.mkldnn_rnn_layer.default"))


def needs_grad_mode(nodes: Iterable[torch.fx.Node]) -> bool:
    """Returns whether a kernel of the graph has to run with grad mode on."""
    return any(node.target in GRAD_MODE_KERNELS for node in nodes)


def used_up(captured: CapturedGraph) -> tuple[int, ...]:
    """Returns the outputs that require grad in eager although their autograd graph was freed."""
    return tuple(
        i
        for i, node in enumerate(output_args(captured.gm))
        if isinstance(node, torch.fx.Node) and getattr(node.meta["val"], "requires_grad", False)
    )


def _plan(split: Split, joint: Joint) -> NodePlan:
    (output,) = split.forward.find_nodes(op="output")
    origins = (joint.plan.origins[size.node.expr] for size in split.sizes)
    return NodePlan(
        outputs=split.outputs,
        saved_inputs=split.saved_inputs,
        saved_outputs=split.saved_outputs,
        without_tangent=tuple(i for i, node in enumerate(joint.tangents) if node is None),
        tangents=split.tangents,
        sizes=tuple((origin.index, origin.dim) for origin in origins),
        orders={i: memory_order(output.args[0][i].meta["val"]) for i in split.tangents},
        differentiable=joint.differentiable,
        interior=_interior(joint, split.tangents),
    )


def _interior(joint: Joint, tangents: Sequence[int]) -> tuple[int, ...]:
    """Returns the outputs with a tangent that another one is computed from."""
    if len(tangents) < 2:
        return ()
    forward, outputs = set(joint.forward), {joint.outputs[index] for index in tangents}
    reaching: set[torch.fx.Node] = set()
    for node in reversed(joint.forward):
        users = forward.intersection(node.users)
        if not users.isdisjoint(outputs) or not users.isdisjoint(reaching):
            reaching.add(node)
    return tuple(index for index in tangents if joint.outputs[index] in reaching)
