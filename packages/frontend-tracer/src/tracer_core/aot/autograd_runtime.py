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
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.aten_recorder import memory_order
from tracer_core.aot.ddp_backward import Backward, Replicas, Step, uncast
from tracer_core.aot.ddp_buckets import Part
from tracer_core.aot.double_backward import Differentiated
from tracer_core.aot.fake_values import captured_values
from tracer_core.aot.joint_graph import Joint, JointLowering
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
from tracer_core.debug.stages import continued
from tracer_core.errors import BackendError
from tracer_core.torch_private.names import names


@dataclass(frozen=True, slots=True)
class TrainingGraphs:
    """The graphs of one training lowering.

    forward, backward: as a backend gets them. split: what passes from one to the other. joint: the
    joint graph. request: for which the backward was lowered.
    """

    forward: Lowered
    backward: Lowered
    split: Split
    joint: Joint
    request: Request


def lower_training(captured: CapturedGraph, request: Request) -> TrainingGraphs:
    """Returns the forward and the backward graph of a captured graph.

    Raises LoweringUnsupported with the reason if one of them has no functional form.
    """
    values = captured_values(captured.gm, captured.real_inputs, grad=True)
    lowering = JointLowering(captured.gm, values, request, captured.real_inputs)
    joint = lowering.joint(captured.inputs)
    budget = getattr(request.options, "memory_budget", 1.0)
    choose = resolve(request.backend.partition)
    try:
        split = Partitioner(joint, budget, choose, request.backend.fuses).split()
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
    return TrainingGraphs(forward, backward, split, joint, later)


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
    gm = torch.fx.GraphModule(torch.nn.Module(), graph, class_name=request.phase.value.title())
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


def take_channels_last(graphs: TrainingGraphs, outputs: Collection[int]) -> None:
    """Tells the backward graph, before it is compiled, which saved outputs of the forward are
    channels-last.
    """
    if not outputs:
        return
    placeholders = graphs.backward.graph.graph.find_nodes(op="placeholder")
    saved = placeholders[len(graphs.split.saved_inputs) :]
    for node, number in zip(saved, graphs.split.saved_outputs, strict=False):
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
    """A runner that is compiled at its first call. Mutable: keeps the compiled runner."""

    def __init__(self, compile_now: Callable[[], RunFunction]) -> None:
        self._compile: Callable[[], RunFunction] | None = compile_now
        self._record = continued()
        self._lock = threading.Lock()
        self._runner: RunFunction | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        runner = self._runner
        if runner is None:
            with self._lock:
                if self._runner is None:
                    assert self._compile is not None
                    with self._record():
                        self._runner = self._compile()
                    self._compile = None  # frees the graphs that it holds
                runner = self._runner
        return runner(inputs)


def training_runner(
    captured: CapturedGraph,
    graphs: TrainingGraphs,
    run_forward: RunFunction,
    compile_backward: Callable[[Lowered], RunFunction],
) -> RunFunction:
    """Returns a runner for the captured graph, given a runner for the forward and a compiler for
    backward graphs.
    """
    joint = graphs.joint
    run_forward = in_its_grad_mode(joint.forward, run_forward)
    step = _step(captured, graphs, run_forward)
    apply = torch_private.direct_apply(
        _function(captured.name, step, compile_backward(graphs.backward))
    )
    leaves_of = _items(joint.differentiable)
    replicas = Replicas(captured.name, step, _in_parts(graphs, compile_backward), apply)
    active_replica = torch_private.active_replica

    def run(args: list[Any]) -> Sequence[Any]:
        replica = active_replica()
        if replica is None:
            return apply(args, *leaves_of(args))  # type: ignore[no-any-return]
        return replicas.run(replica, args, leaves_of(args))

    return joint.plan.bind(run)


def _in_parts(
    graphs: TrainingGraphs, compile_backward: Callable[[Lowered], RunFunction]
) -> Backward:
    """Returns the backward graph in the form that DDP bucketing takes."""
    # without the joint graph, which is no longer needed
    inputs, whole = graphs.backward.spec.inputs, graphs.request

    def compile_part(part: Part, number: int) -> RunFunction:
        names = [node.name for node in part.graph.find_nodes(op="placeholder")]
        specs = tuple(
            inputs[at] if at < len(inputs) else InputSpec(name, Role.SAVED_ACTIVATION, name)
            for at, name in zip(part.takes, names, strict=True)
        )
        request = replace(whole, name=derived_name(whole.name, f"part_{number}"))
        return compile_backward(_lowered(part.graph, specs, (), request))

    return Backward(graphs.backward.graph.graph, graphs.split.gradients, compile_part)


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


def _step(captured: CapturedGraph, graphs: TrainingGraphs, run_forward: RunFunction) -> Step:
    """Returns the behavior of the autograd node for the whole graph."""
    split, joint = graphs.split, graphs.joint
    count = split.outputs
    plain = tuple(i for i, node in enumerate(joint.tangents) if node is None)
    inputs_of, outputs_of, plain_of = map(_items, (split.saved_inputs, split.saved_outputs, plain))
    origins = joint.plan.origins
    sizes_of = size_reader(origins[size.node.expr] for size in split.sizes)
    fits = [(index, _fit(graphs.split.forward, index)) for index in split.tangents]
    found_in = split.gradients
    absent = _absent(split, graphs.backward.graph.graph)
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
        ctx.shapes = [out[index].shape for index in split.tangents]
        return tuple(out[:count])

    def opened(ctx: Any, tangents: Any) -> Any:
        gradients = found_in
        # even for a single output: an autograd node of the program may return None for its input's
        # gradient
        if any(tangents[index] is None for index in split.tangents):
            gradients, tangents = absent(ctx.shapes, tangents)
        fitted = [fit(tangents[index]) for index, fit in fits]
        given = [*ctx.saved_tensors, *ctx.sizes, *fitted]
        torch_private.let_go_of_saved_tensors(ctx)
        return gradients, fitted, given

    return Step(
        forward, opened, again.gradients, again.gradients_if_possible, graphs.forward.spec.device
    )


def _function(name: str, step: Step, run_backward: RunFunction) -> type[torch.autograd.Function]:
    """Returns one autograd Function for the whole graph."""
    opened, again, run_backward = step.opened, step.again, uncast(step.device, run_backward)
    on_cpu = step.device.type == "cpu"

    class CompiledGraph(torch.autograd.Function):
        forward = staticmethod(step.forward)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            if torch.is_grad_enabled():
                return (None, *again(ctx, tangents))
            gradients, fitted, given = opened(ctx, tangents)
            found = run_backward(given)
            made = [None if g is None else found[g] if g >= 0 else fitted[~g] for g in gradients]
            if on_cpu and any(one is None for one in tangents) and _with_nan(made):
                # Zeros stood for the gradients that some outputs did not get: 0 * inf is NaN, where
                # eager computes nothing. (On a GPU to look would wait for it.)
                made = list(step.of_given(ctx, tangents) or made)
            return (None, *made)

    CompiledGraph.__name__ = CompiledGraph.__qualname__ = f"Compiled_{name}"
    return CompiledGraph


def _with_nan(gradients: Sequence[torch.Tensor | None]) -> bool:
    return any(one is not None and bool(one.isnan().any()) for one in gradients)


def _items(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a function that picks these items, always as a tuple."""
    if not indices:
        return lambda values: ()
    if len(indices) == 1:
        (index,) = indices
        return lambda values: (values[index],)
    return operator.itemgetter(*indices)


def _absent(split: Split, backward: torch.fx.Graph) -> Callable[[Any, Any], Any]:
    """Handles calls in which some outputs got no gradient.

    Returns (where the gradients are found, tangents with zeros for those outputs). An input that
    only such outputs depend on gets no gradient, as in eager.
    """
    (output,) = backward.find_nodes(op="output")
    placeholders = backward.find_nodes(op="placeholder")[-len(split.tangents) :]
    depends: dict[torch.fx.Node, frozenset[int]] = {
        node: frozenset([index]) for node, index in zip(placeholders, split.tangents, strict=True)
    }
    for node in backward.nodes:
        if node.op == "call_function":
            depends[node] = frozenset().union(
                *(depends.get(one, frozenset()) for one in node.all_input_nodes)
            )
    outputs = output.args[0]
    needs = [
        depends[placeholders[~g] if g < 0 else outputs[g]] if g is not None else frozenset()
        for g in split.gradients
    ]
    (returned,) = split.forward.find_nodes(op="output")
    like = {index: returned.args[0][index].meta["val"] for index in split.tangents}

    def absent(shapes: Sequence[torch.Size], tangents: Sequence[torch.Tensor | None]) -> Any:
        given = {index for index in split.tangents if tangents[index] is not None}
        found = [
            g if need & given else None for g, need in zip(split.gradients, needs, strict=True)
        ]
        filled = list(tangents)
        for index, shape in zip(split.tangents, shapes, strict=True):
            if filled[index] is None:
                dtype, device = like[index].dtype, like[index].device
                filled[index] = torch.zeros(shape, dtype=dtype, device=device)
        return found, filled

    return absent


def _written_out(tangent: torch.Tensor) -> torch.Tensor:
    """Resolves lazy conjugation and negation, so that the tensor's memory holds its values."""
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
