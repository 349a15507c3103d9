"""The autograd node of a compiled graph: its forward and backward are a backend's graphs.

Made of plain values (`NodePlan`) and runners alone, so that another process can make it again.
Saved tensors are autograd's: it checks their versions, frees them with the graph, and keeps them
for ``retain_graph``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tracer_core import torch_private
from tracer_core.aot.output_hooks import observed, watch
from tracer_core.aot.recompute_forward import RecomputeForward
from tracer_core.contract.runner import RunFunction

if TYPE_CHECKING:
    from tracer_core.aot.ddp_buckets import Part


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What the node of a graph passes from its forward to its backward, by indices.

    outputs: how many of the forward's outputs are the program's. saved_inputs, saved_outputs: of the
    forward, that the backward takes. without_tangent: outputs without a gradient. tangents: those with one.
    sizes: (input, dimension or None) of the numbers that the backward takes. orders: output with a
    tangent -> its dimensions from the outermost to the innermost in memory. differentiable: inputs
    that get a gradient. interior: outputs with a tangent that others are computed from.
    """

    outputs: int
    saved_inputs: tuple[int, ...]
    saved_outputs: tuple[int, ...]
    without_tangent: tuple[int, ...]
    tangents: tuple[int, ...]
    sizes: tuple[tuple[int, int | None], ...]
    orders: Mapping[int, list[int]]
    differentiable: tuple[int, ...]
    interior: tuple[int, ...]

    def watching(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Returns run(args, *leaves), the node, with outputs that take hooks as eager's do."""
        if len(self.tangents) < 2:
            return run
        tangents, interior = self.tangents, self.interior

        def watched(*args: Any) -> Any:
            outputs = run(*args)
            watch(outputs, tangents, interior)
            return outputs

        return watched


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """One backward graph of a captured graph, and its compiler.

    tangents: the outputs (indices) that have a tangent. gradients: for each leaf the index of its
    gradient among the outputs of the graph (``~i`` for the i-th tangent, None for no gradient).
    run: runs the whole graph. graph, compile(part, number): returns a runner for a subgraph; None
    where the graph is not at hand.
    """

    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]
    run: RunFunction
    graph: torch.fx.Graph | None = None
    compile: Callable[[Part, int], RunFunction] | None = None

    def in_parts(self) -> tuple[torch.fx.Graph, Callable[[Part, int], RunFunction]]:
        """Returns the graph and its compiler, which the process that captured it has."""
        assert self.graph is not None and self.compile is not None
        return self.graph, self.compile


class Run:
    """One run of a backward. Mutable.

    ready: the leaves' gradients, where they are known without `backward`. fitted: the tangents as
    the graph takes them. values: the graph's inputs, then what subgraphs computed for later ones;
    freed after the last reader. computed: the graph's outputs. left: the subgraphs that have not run.
    """

    __slots__ = ("backward", "fitted", "computed", "left", "ready", "values")

    def __init__(
        self,
        backward: Backward | None,
        fitted: Sequence[Any],
        values: list[Any],
        ready: Sequence[torch.Tensor | None] | None = None,
    ) -> None:
        self.backward, self.fitted, self.values, self.ready = backward, fitted, values, ready
        self.computed: dict[int, torch.Tensor] | Sequence[torch.Tensor] = {}
        self.left: list[tuple[int, Part, RunFunction]] = []

    def full(self) -> list[torch.Tensor | None]:
        """Runs the whole graph; returns the gradient of each leaf."""
        if self.backward is not None:
            self.computed = self.backward.run(self.values)
            return self.of(range(len(self.backward.gradients)))
        assert self.ready is not None
        return list(self.ready)

    def until(self, number: int) -> None:
        """Runs the subgraphs up to this one."""
        while self.left and self.left[0][0] <= number:
            _, part, runner = self.left.pop(0)
            out = list(runner([self.values[at] for at in part.takes]))
            self.values += out[len(part.gives) :]
            for at in part.done:
                self.values[at] = None
            self.computed |= dict(zip(part.gives, out, strict=False))  # type: ignore[operator]

    def of(self, leaves: Iterable[int]) -> list[torch.Tensor | None]:
        """Returns the gradients of these leaves, which were computed."""
        if self.backward is None:
            assert self.ready is not None
            return [self.ready[leaf] for leaf in leaves]
        result, fitted, gradients = self.computed, self.fitted, self.backward.gradients
        places = [gradients[leaf] for leaf in leaves]
        return [None if g is None else result[g] if g >= 0 else fitted[~g] for g in places]


@dataclass(frozen=True, slots=True)
class AutogradStep:
    """What the autograd node of a graph does.

    forward(ctx, args, *leaves): runs the forward graph. opened(ctx, tangents): begins a run of the
    backward for the tangents that are there. full: the backward for all tangents. device: of the
    graph.
    """

    forward: Callable[..., Any]
    opened: Callable[[Any, Any], Run]
    full: Backward
    device: torch.device


class Backwards(Protocol):
    """The backwards of one graph. full: for all tangents."""

    @property
    def full(self) -> Backward: ...

    def of(self, tangents: Sequence[torch.Tensor | None]) -> Backward | None:
        """Returns the backward for the tangents that are there; None if no graph computes it."""


#: What a backward without a graph of its own is asked for.
_OF_SOME = "the gradient of some outputs alone"
_OF_INTERIOR = "the gradient of an output that other outputs are computed from"


def node_step(
    plan: NodePlan,
    run_forward: RunFunction,
    backwards: Backwards,
    again: RecomputeForward,
    device: torch.device,
) -> AutogradStep:
    """Returns the behavior of the autograd node for the whole graph."""
    count, sizes = plan.outputs, plan.sizes
    inputs_of, outputs_of, plain_of = map(
        items, (plan.saved_inputs, plan.saved_outputs, plan.without_tangent)
    )
    fits = {index: _fit(order) for index, order in plan.orders.items()}

    def sizes_of(args: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([args[i] if dim is None else args[i].shape[dim] for i, dim in sizes])

    def forward(ctx: Any, args: list[Any], *leaves: torch.Tensor | None) -> Any:
        inputs_to_save = inputs_of(args)
        ctx.sizes = sizes_of(args)
        again.remember(ctx, args)
        out = list(run_forward(args))
        # A view returned by a Function may not be written to. A detached tensor is no view, and
        # still shares its version counter.
        out[:count] = [item.detach() if item._is_view() else item for item in out[:count]]
        again.remember_versions(ctx)
        ctx.save_for_backward(*inputs_to_save, *outputs_of(out))
        ctx.mark_non_differentiable(*plain_of(out))
        ctx.set_materialize_grads(False)
        ctx.watched = ()
        return tuple(out[:count])

    def opened(ctx: Any, tangents: Any) -> Run:
        asked = observed(ctx, tangents, not again.obstacle) if ctx.watched else ()
        if torch.is_grad_enabled():
            return Run(None, (), [], again.gradients(ctx, tangents, observed=asked))
        if all(item is None for item in tangents):  # an autograd node of the program gave none
            return Run(None, (), [], [None] * len(plan.differentiable))
        if asked:
            ready = again.gradients_alone(ctx, tangents, _OF_INTERIOR, asked)
            return Run(None, (), [], ready)
        if any(tangent is not None and torch_private.is_batched(tangent) for tangent in tangents):
            return Run(None, (), [], again.gradients_alone(ctx, tangents, "a batch of gradients"))
        backward = backwards.of(tangents)
        if backward is None:
            return Run(None, (), [], again.gradients_alone(ctx, tangents, _OF_SOME))
        fitted = [fits[index](tangents[index]) for index in backward.tangents]
        values = [*ctx.saved_tensors, *ctx.sizes, *fitted]
        torch_private.let_go_of_saved_tensors(ctx)
        return Run(backward, fitted, values)

    return AutogradStep(forward, opened, backwards.full, device)


def autograd_function(name: str, step: AutogradStep) -> type[torch.autograd.Function]:
    """Returns one autograd Function for the whole graph."""
    opened = step.opened

    class CompiledGraph(torch.autograd.Function):
        forward = staticmethod(step.forward)

        @staticmethod
        def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            return (None, *opened(ctx, tangents).full())

    CompiledGraph.__name__ = CompiledGraph.__qualname__ = f"Compiled_{name}"
    return CompiledGraph


def items(indices: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
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


def _fit(order: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a function that gives a tangent the layout of its output, for which the backward was
    compiled. order: of the output's dimensions in memory.
    """
    if order == list(range(len(order))):
        return lambda tangent: _written_out(tangent).contiguous()
    inverse = sorted(order, key=order.__getitem__)

    def permuted(tangent: torch.Tensor) -> torch.Tensor:
        packed = _written_out(tangent).permute(order)
        return tangent if packed.is_contiguous() else packed.contiguous().permute(inverse)

    return permuted


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


def with_used_up(wanted: Sequence[int], run: RunFunction) -> RunFunction:
    """Makes these outputs require grad, which do so in eager although their autograd graph was
    freed.
    """
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


def in_grad_mode(run: RunFunction) -> RunFunction:
    """Runs with grad mode on, but without recording."""

    def run_in_grad_mode(inputs: list[Any]) -> Sequence[Any]:
        with torch_private.grad_mode_without_graph():
            return run(inputs)

    return run_in_grad_mode
