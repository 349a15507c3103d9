"""Lowers with autograd: traces the joint graph of a captured graph, or a graph that computes
gradients itself.

In: a captured graph whose outputs require grad, or that calls ``torch.autograd.grad``. Out:
`Joint`: one functional ATen graph. The nodes up to a boundary compute the outputs (and write to
inputs); the later nodes compute, from one tangent per output that requires grad, the gradient of
every input that requires grad. Where the graph consumes its gradients itself (a whole training
step), one `Lowered`; where it also returns what can be differentiated once more (forces that a model
is trained on), a `Joint` whose forward has the inner gradient in it.

The captured graph is interpreted as for inference (see `lower`), with grad mode on and its inputs
as leaves. torch's autograd then runs over the same functional wrappers, and the recorder records
the operators. So hooks, autograd.Function, checkpoint and autocast inside the graph behave as in
eager.

What always holds: no node of the backward stands before the boundary; the gradient of a leaf has
the leaf's strides where those are dense (as autograd's accumulation requires).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot import view_aliasing
from tracer_core.aot.aten_recorder import memory_order
from tracer_core.aot.lower import Ending, Lowering
from tracer_core.aot.output_aliasing import OutputLayout, OutputPlan, restride
from tracer_core.aot.request import Request
from tracer_core.aot.rng_saved import is_rng_node
from tracer_core.contract.lowering_errors import (
    LoweringUnsupported,
    OnlyViews,
    StillDifferentiable,
    first_line,
)
from tracer_core.contract.specs import InputSpec
from tracer_core.ops.higher_order.gradients import GRADIENT_CALLS
from tracer_core.torch_private.needed import pytree


@dataclass(frozen=True, slots=True)
class Joint:
    """A joint graph.

    graph: forward and backward nodes, without an output node. inputs: an InputSpec for each
    placeholder of the forward. differentiable: indices of inputs that get a gradient. outputs,
    mutations, plan: the forward's, see `Lowering`. tangents: for each output of the ATen graph its
    tangent's placeholder, or None where it requires no grad. gradients: for each differentiable
    input its node, or None. forward: the nodes before the boundary, including the placeholders of
    the forward. uses_other_rng: why an eager run of the captured graph draws other random numbers,
    or draws them more often, or "". written_later: see `CapturedGraph`.
    """

    graph: torch.fx.Graph
    inputs: tuple[InputSpec, ...]
    differentiable: tuple[int, ...]
    outputs: tuple[torch.fx.Node, ...]
    mutations: tuple[int, ...]
    plan: OutputPlan
    tangents: tuple[torch.fx.Node | None, ...]
    gradients: tuple[torch.fx.Node | None, ...]
    forward: tuple[torch.fx.Node, ...]
    uses_other_rng: str = ""
    written_later: frozenset[int] = frozenset()


def calls_autograd(gm: torch.fx.GraphModule) -> bool:
    """Whether a captured graph computes gradients itself."""
    return any(
        node.op == "call_function" and node.target in GRADIENT_CALLS for node in gm.graph.nodes
    )


def _appending(ran: list[torch.fx.Node], node: torch.fx.Node) -> Callable[[Any], None]:
    return lambda gradients: ran.append(node)


class JointLowering(Lowering):
    """One joint lowering. Mutable."""

    differentiates = True

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        values: Mapping[torch.fx.Node, Any],
        request: Request,
        inputs: Sequence[Any],
    ) -> None:
        super().__init__(gm, values, request)
        self.ending: Ending | None = None  # of `joint`
        #: Node of autograd -> the captured call that made it. Without those of views: to ask for
        #: theirs may run operators.
        self.derivatives: dict[Any, torch.fx.Node] = {}
        # A fake has the requires_grad of its tensor after the call; the input specs have it before
        # the call.
        for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
            if isinstance(value, torch.Tensor):
                self.leaves[id(values[node])] = value.requires_grad

    def _interpret_node(self, node: torch.fx.Node) -> None:
        if node.target in GRADIENT_CALLS and not self.forward:
            self.forward = tuple(self.recorder.graph.nodes)
        super()._interpret_node(node)
        for leaf in pytree.tree_leaves(self.env.get(node)):
            if isinstance(leaf, torch.Tensor) and not leaf._is_view() and leaf.grad_fn is not None:
                self.derivatives.setdefault(leaf.grad_fn, node)

    def joint(self, specs: tuple[InputSpec, ...]) -> Joint:
        """Interprets and differentiates. Raises LoweringUnsupported where an effect of autograd has
        no functional form.
        """
        recorder = self.recorder
        with self.active():
            ending = self._differentiable_ending()
            plan, forward = self.plan(ending), tuple(recorder.graph.nodes)
            leaves = self._leaves()
            n_inputs = len(recorder.placeholders)
            tangents = self._tangents(ending)
            gradients = self._differentiate(ending, tangents, [wrapper for _, wrapper in leaves])
            # The forward is given the constants of the backward, too, and saves them.
            result = recorder.move_constants(n_inputs)
            forward = (*forward[:n_inputs], *result, *forward[n_inputs:])
            plan = replace(plan, constants=tuple(recorder.constants))
            inputs = specs + self.extra_specs()
            self.ending = ending
            if any(gradient is not None for gradient in gradients):
                # A leaf that no gradient reaches is not connected in eager: the node that made it
                # does not run, and may have no derivative.
                reached = [k for k, gradient in enumerate(gradients) if gradient is not None]
                leaves, gradients = [leaves[k] for k in reached], [gradients[k] for k in reached]
        return Joint(
            recorder.graph,
            inputs,
            tuple(index for index, _ in leaves),
            tuple(ending.planner.nodes),
            ending.mutations,
            plan,
            tuple(None if value is None else recorder.node_of(value) for value in tangents),
            tuple(gradients),
            forward,
            self._uses_other_rng(forward),
        )

    def _uses_other_rng(self, forward: Collection[torch.fx.Node]) -> str:
        recorder = self.recorder
        if recorder.decomposed_rng is not None:
            return f"the backend decomposes {recorder.decomposed_rng}, which draws random numbers"
        if recorder.rng is not None and recorder.rng.recomputed:
            return "a checkpoint uses its random numbers again"
        known = set(forward)
        if any(is_rng_node(node) for node in recorder.graph.nodes if node not in known):
            return "its backward draws random numbers"
        return ""

    def joint_of(self, joint: Joint, outputs: Collection[int]) -> Joint:
        """Returns a joint graph with the same forward, for calls in which these outputs alone get a
        tangent: autograd runs no node of the others. The nodes of its backward are added to the
        graph of `joint`, which this lowering made.

        Raises LoweringUnsupported where this needs another guard on sizes than the forward.
        """
        assert self.ending is not None
        tangents = tuple(
            node if index in outputs else None for index, node in enumerate(joint.tangents)
        )
        values = [None if node is None else node.meta["val"] for node in tangents]
        places = torch_private.guard_locations(self.fake_mode.shape_env)
        asked = 0 if places is None else len(places.guards) + len(places.forced)
        n_constants = len(self.recorder.constants)
        with self.active():
            wrappers = dict(self._leaves())
            leaves = [wrappers[index] for index in joint.differentiable]
            gradients = self._differentiate(self.ending, values, leaves)
        if places is not None and len(places.guards) + len(places.forced) > asked:
            raise LoweringUnsupported("the backward of some outputs alone asks for sizes anew")
        if len(self.recorder.constants) > n_constants:
            raise LoweringUnsupported("the backward of some outputs alone makes constants anew")
        return replace(joint, tangents=tangents, gradients=tuple(gradients))

    def _differentiable_ending(self) -> Ending:
        """Interprets the captured graph, whose outputs are differentiated afterwards. Gradients that
        it computes itself with ``create_graph=True`` are part of the forward."""
        ending = super().finish()
        self._require_no_new_gradients()
        return ending

    def finish(self) -> Ending:
        """Also checks that no output of a graph that computes gradients itself can be differentiated
        afterwards."""
        ending = self._differentiable_ending()
        if calls_autograd(self.gm):
            sources = [source for source in ending.planner.sources if source.requires_grad]
            for key in dict.fromkeys(map(id, sources)):
                self._require_used_up(self.wrappers[key])
        return ending

    def _require_used_up(self, root: torch.Tensor) -> None:
        """Checks with autograd itself whether the graph behind a value is freed; nodes recorded for
        the check are dead.
        """
        if not root.requires_grad:
            return
        try:
            with self.functional(), torch_private.autocast_off():
                leaves = [leaf for _, leaf in self._leaves()] or torch_private.leaves_behind(root)
                torch.autograd.grad(root, leaves, torch.ones_like(root), True, allow_unused=True)
        except RuntimeError as error:
            if not torch_private.is_freed(error):
                raise LoweringUnsupported(f"an output cannot be differentiated: {error}") from error
            return
        reason = "the graph computes gradients, and an output can be differentiated once more"
        raise StillDifferentiable(reason)

    def _leaves(self) -> list[tuple[int, torch.Tensor]]:
        """Returns (index, wrapper) of each input that requires grad."""
        return [
            (index, self.wrappers[id(value)])
            for index, value in enumerate(self.recorder.inputs)
            if isinstance(value, torch.Tensor)
            and id(value) in self.wrappers
            and self.leaves.get(id(value), value.requires_grad)
        ]

    def _require_no_new_gradients(self) -> None:
        """Rejects a write that carries gradients into an input: it changes the input's autograd
        history, which a copy into it would not.
        """
        for node, value in zip(self.recorder.placeholders, self.recorder.inputs, strict=True):
            wrapper = self.wrappers.get(id(value))
            if wrapper is not None and wrapper.requires_grad and not wrapper.is_leaf:
                written = {torch_private.storage_id(value)}
                raise LoweringUnsupported(
                    f"the graph writes values that require grad into its input {node.name}",
                    nodes=view_aliasing.writers(self.gm.graph, written),
                )

    def _tangents(self, ending: Ending) -> list[torch.Tensor | None]:
        """Returns a fake tangent for each output of the ATen graph that requires grad, like the
        output.
        """
        tangents: list[torch.Tensor | None] = []
        planner = ending.planner
        for index, (source, value) in enumerate(zip(planner.sources, planner.values, strict=True)):
            if not source.requires_grad:
                tangents.append(None)
                continue
            if not self.wrappers[id(source)].requires_grad:
                reason = f"output {index} requires grad in eager, but not as a functional value"
                raise LoweringUnsupported(reason)
            if value.layout is not torch.strided:
                raise LoweringUnsupported(f"output {index}, which has a gradient, is sparse")
            with torch.no_grad():
                # Not recorded: the recorder is not entered inside the mode's native kernels.
                tangent = torch_private.fake_like(value, strides=_tangent_strides(value))
            self.recorder.add_input(f"tangent_{index}", tangent)
            tangents.append(tangent)
        return tangents

    def _differentiate(
        self,
        ending: Ending,
        tangents: Sequence[torch.Tensor | None],
        leaves: Sequence[torch.Tensor],
    ) -> list[torch.fx.Node | None]:
        roots = [
            (self.wrappers[id(source)], tangent)
            for source, tangent in zip(ending.planner.sources, tangents, strict=True)
            if tangent is not None
        ]
        if not roots:
            raise OnlyViews("no output depends on an input that requires grad")
        if not leaves:
            raise LoweringUnsupported("no output depends on an input that requires grad")
        retain = sum(source.requires_grad for source in ending.planner.sources) > 1  # `joint_of`
        with self.functional(), torch_private.autocast_off(), self._failures_located():
            wrapped = [self.wrapper(tangent) for _, tangent in roots]
            with torch_private.sizes_of_one_queried(self.fake_mode.shape_env):  # as in `interpret`
                gradients = torch_private.gradients_of(
                    [root for root, _ in roots], wrapped, leaves, retain
                )
        with torch.no_grad():
            return [
                None if gradient is None else self._gradient(gradient, leaf)
                for gradient, leaf in zip(gradients, leaves, strict=True)
            ]

    @contextlib.contextmanager
    def _failures_located(self) -> Iterator[None]:
        """Context of a backward: what it raises becomes LoweringUnsupported with the captured call
        whose derivative ran last."""
        ran: list[torch.fx.Node] = []
        handles = [
            derivative.register_prehook(_appending(ran, node))
            for derivative, node in self.derivatives.items()
        ]
        try:
            yield
        except torch_private.fake_failures() as error:
            reason = f"{type(error).__name__}: {error}"
            raise LoweringUnsupported(reason, nodes=self._like(ran[-1:])) from error
        except LoweringUnsupported as error:
            error.nodes = error.nodes or self._like(ran[-1:])
            raise
        except self.backward_errors as error:
            # It reads values, writes in place to a wrapper, or divides by a number of elements.
            reason = f"the backward fails on functional values: {first_line(error)}"
            raise LoweringUnsupported(reason, nodes=self._like(ran[-1:])) from error
        finally:
            for handle in handles:
                handle.remove()

    def _like(self, nodes: Sequence[torch.fx.Node]) -> tuple[torch.fx.Node, ...]:
        """Returns the calls of the same functions; of PyTorch's own, whose derivatives depend on their
        arguments, these calls alone."""
        own = {node.target for node in nodes if getattr(node.target, "namespace", "aten") != "aten"}
        return tuple(node for node in self.gm.graph.nodes if node in nodes or node.target in own)

    def _gradient(self, gradient: torch.Tensor, leaf: torch.Tensor) -> torch.fx.Node:
        if gradient.layout is not torch.strided:
            raise LoweringUnsupported(f"a gradient is {gradient.layout}")
        if torch_private.is_wrapper(gradient):
            raise LoweringUnsupported("the gradient of a plain tensor is a tensor of a subclass")
        value = torch_private.functional_value(gradient)
        like = torch_private.functional_value(leaf)
        if OutputLayout.of(like).dense:
            value = restride(value, like)
        node: torch.fx.Node = self.recorder.node_of(value)
        return node


def _tangent_strides(output: torch.Tensor) -> tuple[Any, ...]:
    """Returns the strides of a tangent, which `autograd_runtime._fit` establishes: the output's,
    without gaps and overlaps.
    """
    if OutputLayout.of(output).dense:
        return tuple(output.stride())
    strides: list[Any] = [1] * output.dim()
    step: Any = 1
    for dim in reversed(memory_order(output)):
        strides[dim] = step
        step = step * output.shape[dim]
    return tuple(strides)
