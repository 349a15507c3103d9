"""Lowering with autograd: the joint graph of a captured graph, or a graph that computes gradients
itself.

In: a captured graph whose outputs require grad, or that calls ``torch.autograd.grad``. Out:
`Joint`: one functional ATen graph whose nodes up to a boundary compute the outputs (and write to
inputs), and whose later nodes compute, from one tangent an output that requires grad, the gradient
of every input that does. Or, where the graph used its gradients up itself (a whole training step),
one `Lowered`.

How: the captured graph is interpreted as for inference (see `lower`), with grad mode on and its
inputs leaves; torch's autograd then runs over the same functional wrappers, and the recorder writes
down what it does. So hooks, autograd.Function, checkpoint and autocast inside the graph mean what
they mean in eager.

What always holds: nothing of the backward pass stands before the boundary; the gradient of a leaf
has the leaf's strides where those are dense (as autograd's accumulation wants them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.aten_recorder import memory_order
from tracer_core.aot.errors import LoweringUnsupported
from tracer_core.aot.lower import Ending, Lowering
from tracer_core.aot.output_aliasing import Layout, OutputPlan, restride
from tracer_core.aot.request import Request
from tracer_core.contract.specs import InputSpec
from tracer_core.torch_private.names import names

#: Operators that run autograd inside a graph: what they differentiated is gone afterwards, as in
#: eager.
GRADIENT_CALLS = frozenset(names("autograd.grad autograd.backward"))


#: How torch says that a graph was freed by its first backward.


@dataclass(frozen=True, slots=True)
class Joint:
    """graph: forward and backward nodes, without an output node. inputs: an InputSpec for each
    placeholder of the forward. differentiable: indices of inputs that get a gradient. outputs,
    mutations, plan: the forward's, see `Lowering`. tangents: for each output of the ATen graph its
    tangent's placeholder, or None where it requires no grad. gradients: for each differentiable
    input its node, or None. forward: the nodes that stand before the boundary, placeholders of the
    forward among them."""

    graph: torch.fx.Graph
    inputs: tuple[InputSpec, ...]
    differentiable: tuple[int, ...]
    outputs: tuple[torch.fx.Node, ...]
    mutations: tuple[int, ...]
    plan: OutputPlan
    tangents: tuple[torch.fx.Node | None, ...]
    gradients: tuple[torch.fx.Node | None, ...]
    forward: tuple[torch.fx.Node, ...]


def calls_autograd(gm: torch.fx.GraphModule) -> bool:
    """Whether a captured graph computes gradients itself."""
    return any(
        node.op == "call_function" and node.target in GRADIENT_CALLS for node in gm.graph.nodes
    )


class JointLowering(Lowering):
    """One joint lowering (mutable)."""

    differentiates = True

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        values: Mapping[torch.fx.Node, Any],
        request: Request,
        inputs: Sequence[Any],
    ) -> None:
        super().__init__(gm, values, request)
        # A fake says what its tensor required after the call; the call began as the inputs say.
        for node, given in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True):
            if isinstance(given, torch.Tensor):
                self.leaves[id(values[node])] = given.requires_grad

    def joint(self, specs: tuple[InputSpec, ...]) -> Joint:
        """Interprets and differentiates. Raises LoweringUnsupported where autograd's effects have
        no functional form."""
        recorder = self.recorder
        with self.active():
            ending = self.finish()
            inputs, plan = specs + self.extra_specs(), self.plan(ending)
            forward = tuple(recorder.graph.nodes)
            leaves = self._leaves()
            tangents = self._tangents(ending)
            gradients = self._differentiate(ending, tangents, [wrapper for _, wrapper in leaves])
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
        )

    def finish(self) -> Ending:
        """Also looks at what can be differentiated afterwards."""
        ending = super().finish()
        self._require_no_new_gradients()
        if calls_autograd(self.gm):
            for value in {
                id(one): one for one in ending.planner.sources if one.requires_grad
            }.values():
                self._require_used_up(self.wrappers[id(value)])
        return ending

    def _require_used_up(self, root: torch.Tensor) -> None:
        """Autograd itself knows whether the graph behind a value is gone; what it records to find
        out is dead.
        """
        if not root.requires_grad:
            return
        try:
            with torch_private.functionalization(), torch_private.autocast_off():
                ones = torch.ones_like(root)
                torch.autograd.grad(
                    root, [w for _, w in self._leaves()], ones, True, allow_unused=True
                )
        except RuntimeError as error:
            if not torch_private.is_freed(error):
                raise LoweringUnsupported(f"an output cannot be differentiated: {error}") from error
            return
        raise LoweringUnsupported(
            "the graph computes gradients, and an output can be differentiated once more"
        )

    def _leaves(self) -> list[tuple[int, torch.Tensor]]:
        """(index, wrapper) of each input that requires grad."""
        return [
            (index, self.wrappers[id(value)])
            for index, value in enumerate(self.recorder.inputs)
            if isinstance(value, torch.Tensor)
            and id(value) in self.wrappers
            and self.leaves.get(id(value), value.requires_grad)
        ]

    def _require_no_new_gradients(self) -> None:
        """A write that carries gradients into an input changes the input's place in autograd's
        graph, which a copy into it would not."""
        for node, value in zip(self.recorder.placeholders, self.recorder.inputs, strict=True):
            wrapper = self.wrappers.get(id(value))
            if wrapper is not None and wrapper.requires_grad and not wrapper.is_leaf:
                raise LoweringUnsupported(
                    f"the graph writes values that require grad into its input {node.name}"
                )

    def _tangents(self, ending: Ending) -> list[torch.Tensor | None]:
        """A fake for the gradient of each output of the ATen graph that requires grad, like the
        output.
        """
        tangents: list[torch.Tensor | None] = []
        planner = ending.planner
        for index, (source, value) in enumerate(zip(planner.sources, planner.values, strict=True)):
            if not source.requires_grad or not self._reaches(index, self.wrappers[id(source)]):
                tangents.append(None)
                continue
            with torch.no_grad():
                # Not recorded: the recorder is not entered inside the mode's own kernels.
                tangent = torch_private.fake_like(value, strides=_tangent_strides(value))
            self.recorder.add_input(f"tangent_{index}", tangent)
            tangents.append(tangent)
        return tangents

    def _reaches(self, index: int, wrapper: torch.Tensor) -> bool:
        if not wrapper.requires_grad:
            raise LoweringUnsupported(
                f"output {index} requires grad in eager, but not as a functional value"
            )
        return True

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
        if not roots or not leaves:
            raise LoweringUnsupported("no output depends on an input that requires grad")
        with torch_private.functionalization(), torch_private.autocast_off():
            wrapped = [self.wrapper(tangent) for _, tangent in roots]
            try:
                with torch_private.sizes_of_one_asked(
                    self.fake_mode.shape_env
                ):  # as in `_interpret`
                    found = torch_private.gradients_of([root for root, _ in roots], wrapped, leaves)
            except torch_private.fake_failures():
                raise
            except (
                RuntimeError
            ) as error:  # it reads values, or writes in place to what is no value here
                first = str(error).splitlines()[0] if str(error) else ""
                raise LoweringUnsupported(
                    f"the backward fails on functional values: {first}"
                ) from error
        with torch.no_grad():
            return [
                None if gradient is None else self._gradient(gradient, leaf)
                for gradient, leaf in zip(found, leaves, strict=True)
            ]

    def _gradient(self, gradient: torch.Tensor, leaf: torch.Tensor) -> torch.fx.Node:
        if gradient.layout is not torch.strided:
            raise LoweringUnsupported(f"a gradient is {gradient.layout}")
        value = torch_private.functional_value(gradient)
        like = torch_private.functional_value(leaf)
        if Layout.of(like).dense:
            value = restride(value, like)
        node: torch.fx.Node = self.recorder.node_of(value)
        return node


def _tangent_strides(output: torch.Tensor) -> tuple[Any, ...]:
    """How a tangent lies in memory (`training._fit` sees to it): as the output, without gaps and
    repetitions.
    """
    if Layout.of(output).dense:
        return tuple(output.stride())
    strides: list[Any] = [1] * output.dim()
    step: Any = 1
    for dim in reversed(memory_order(output)):
        strides[dim] = step
        step = step * output.shape[dim]
    return tuple(strides)
