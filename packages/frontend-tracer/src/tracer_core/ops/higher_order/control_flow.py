"""torch.cond and torch.while_loop as operators, ``tracer_core::cond`` and ``while_loop``.

What they run stands in their arguments as programs (see `tracer_core.ops.higher_order.scan`), which take all
tensors of the call. Results are contiguous and without aliases. The gradient of a cond is a cond of
the same predicate. Graphs have these operators for backends that keep ``tracer_core::scan``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.ops.definitions import declare, implement
from tracer_core.ops.higher_order.scan import Scan, function_of
from tracer_core.torch_private.names import names

#: Both read a value on the host, which a CUDA graph cannot capture.
_TAGS = names("Tag.cudagraph_unsafe")

COND = declare(
    "cond(Tensor predicate, Tensor[] inputs, SymInt[] numbers, str if_true, str if_false)"
    " -> Tensor[]",
    tags=_TAGS,
)
#: program: takes (outer, carry, numbers) and returns (carry, whether there is another step).
WHILE = declare(
    "while_loop(Tensor more, Tensor[] outer, Tensor[] carry, SymInt[] numbers, str program)"
    " -> Tensor[]",
    tags=_TAGS,
)


def _cond(
    predicate: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    if_true: str,
    if_false: str,
) -> list[torch.Tensor]:
    return list(function_of(if_true if bool(predicate) else if_false)(*inputs, *numbers))


def _cond_fake(
    predicate: Any, inputs: Any, numbers: Any, if_true: str, if_false: str
) -> list[torch.Tensor]:
    return [item.new_empty(item.shape) for item in function_of(if_true)(*inputs, *numbers)]


def _while(
    more: torch.Tensor,
    outer: Sequence[torch.Tensor],
    carry: Sequence[torch.Tensor],
    numbers: Sequence[Any],
    program: str,
) -> list[torch.Tensor]:
    step, state = function_of(program), [item.clone() for item in carry]
    while bool(more):
        *state, more = step(*outer, *state, *numbers)
    return state


def _while_fake(more: Any, outer: Any, carry: Any, numbers: Any, program: str) -> Any:
    return [item.new_empty(item.shape) for item in carry]


implement(COND, _cond, _cond_fake)
implement(WHILE, _while, _while_fake)


# -- captured calls --


@dataclass(eq=False)
class CapturedCond:
    """The call target of a captured cond: two graphs, each of which takes the operands at the given
    positions."""

    if_true: torch.fx.GraphModule
    if_false: torch.fx.GraphModule
    true_inputs: tuple[int, ...]
    false_inputs: tuple[int, ...]

    def branch(self, taken: bool, inputs: Sequence[Any]) -> Sequence[Any]:
        """Runs one of the graphs."""
        graph, positions = (
            (self.if_true, self.true_inputs) if taken else (self.if_false, self.false_inputs)
        )
        results: Sequence[Any] = graph(*(inputs[i] for i in positions))
        return results


@dataclass(eq=False)
class CapturedWhile:
    """The call target of a captured while_loop: graphs of (outer..., carry...). n_condition,
    n_body: the number of outer values of each graph, which precede the carry among the
    inputs."""

    condition: torch.fx.GraphModule
    body: torch.fx.GraphModule
    n_condition: int
    n_body: int


@dataclass(frozen=True, slots=True)
class Cond:
    """How a captured cond runs as the operator: each branch as a step that carries nothing and has
    no rows."""

    if_true: Scan
    if_false: Scan

    def __call__(self, predicate: torch.Tensor, *inputs: Any) -> list[torch.Tensor]:
        self.if_true.require_same_settings()
        arguments = [inputs[place] for place in self.if_true.order]
        count = self.if_true.n_tensors
        tensors, numbers = [item.contiguous() for item in arguments[:count]], arguments[count:]
        if self.if_true.backward is not None and torch.is_grad_enabled():
            result: Any = _Gradient.apply(self, predicate, numbers, *tensors)  # type: ignore[no-untyped-call]
            return list(result)
        programs = self.if_true.forward, self.if_false.forward
        return list(COND(predicate, tensors, numbers, *programs))


class _Gradient(torch.autograd.Function):
    """The autograd formula of a cond: an operand that a branch does not read has a gradient of
    zeros."""

    @staticmethod
    def forward(ctx: Any, cond: Cond, predicate: Any, numbers: Any, *tensors: Any) -> Any:
        programs = cond.if_true.forward, cond.if_false.forward
        results = COND(predicate, list(tensors), numbers, *programs)
        ctx.mark_non_differentiable(*(results[place] for place in cond.if_true.fixed))
        ctx.save_for_backward(predicate, *tensors)
        ctx.rest = cond, numbers
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        cond, numbers = ctx.rest
        predicate, *tensors = ctx.saved_tensors
        if_true = cond.if_true
        sums = [torch.zeros_like(tensors[k]) for k in if_true.outer_gradients]
        tangents = [grad.contiguous() for k, grad in enumerate(grads) if k not in if_true.fixed]
        inputs = [*tensors, *sums, *tangents]
        results = COND(predicate, inputs, numbers, if_true.backward, cond.if_false.backward)
        result: list[Any] = [None] * len(tensors)
        for k, gradient in zip(if_true.outer_gradients, results, strict=True):
            result[k] = gradient
        return None, None, None, *result


@dataclass(frozen=True, slots=True)
class While:
    """How a captured while_loop runs as the operator: its step is the body, and then the condition
    of the next step."""

    step: Scan

    def __call__(self, more: torch.Tensor, *inputs: Any) -> list[torch.Tensor]:
        self.step.require_same_settings()
        arguments = [inputs[place] for place in self.step.order]
        count = self.step.n_tensors
        outer, carry, _ = self.step.parted([item.contiguous() for item in arguments[:count]])
        return list(WHILE(more, outer, carry, arguments[count:], self.step.forward))
