"""Tensors that the program replaces in each call, as a backward pass replaces gradients: guarded
together, each as exactly as alone.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tracer_core
from tracer_core.fx_capture.function_traits import written_arguments
from tracer_core.testing import CaptureCounter


class Holder:
    """What a training loop holds: a list of objects whose tensors it replaces."""

    def __init__(self, count: int) -> None:
        self.parts = [torch.nn.Parameter(torch.ones(3) * n) for n in range(count)]

    def replace(self, make: Any) -> None:
        for number, part in enumerate(self.parts):
            part.grad = make(number)


def total(holder: Holder) -> torch.Tensor:
    return sum(part.grad * number for number, part in enumerate(holder.parts))


CHANGES = {
    "dtype": lambda grad: grad.double(),
    "strides": lambda grad: torch.stack([grad, grad], 1)[:, 0],
    "requires_grad": lambda grad: grad.clone().requires_grad_(),
}


@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_among_many_is_seen(change: str, at: int) -> None:
    holder = Holder(6)
    fast = tracer_core.compile(total)
    with CaptureCounter() as counter:
        for step in range(3):
            holder.replace(lambda n, step=step: torch.full((3,), float(step + n)))
            torch.testing.assert_close(
                fast(holder), total(holder), rtol=0, atol=0, check_stride=True
            )
        assert len(counter.graphs) == 1
        holder.parts[at].grad = None
        kind = CHANGES[change](torch.arange(3.0))
        if change == "dtype":
            holder.parts[at] = torch.nn.Parameter(holder.parts[at].detach().double())
        holder.parts[at].grad = kind
        for _ in range(2):
            torch.testing.assert_close(
                fast(holder), total(holder), rtol=0, atol=0, check_stride=True
            )
        assert len(counter.graphs) == 2


def test_gradients_may_come_to_share_memory() -> None:
    """The graph writes to the gradients, as a clipping by value does."""
    holder = Holder(5)

    def clip(holder: Holder) -> None:
        torch._foreach_mul_([part.grad for part in holder.parts], 2.0)

    fast = tracer_core.compile(clip)
    for step in range(3):
        holder.replace(lambda n, step=step: torch.full((3,), float(step + n)))
        fast(holder)
        assert [part.grad[0].item() for part in holder.parts] == [
            2.0 * (step + n) for n in range(5)
        ]
    shared = torch.ones(3)
    holder.replace(lambda n: shared if n in (1, 4) else torch.ones(3))
    fast(holder)
    assert [part.grad[0].item() for part in holder.parts] == [2.0, 4.0, 2.0, 2.0, 4.0]


def test_what_a_foreach_operator_writes_is_what_its_schema_says() -> None:
    names = {
        function: {name for _, name in written_arguments(function)}
        for function in (torch._foreach_lerp_, torch._foreach_addcdiv_, torch._fused_sgd_)
    }
    assert names == {
        torch._foreach_lerp_: {"self"},
        torch._foreach_addcdiv_: {"self"},
        torch._fused_sgd_: {"self", "grads", "momentum_buffer_list"},
    }


def test_an_optimizer_does_not_write_gradients() -> None:
    """Its gradients may be expanded, which no operator may write to."""
    weights = [torch.nn.Parameter(torch.arange(4.0) + n) for n in range(5)]
    optimizer = torch.optim.SGD(weights, lr=0.1, foreach=True)
    fast = tracer_core.compile(lambda: optimizer.step(), fullgraph=True)
    for step in range(3):
        for weight in weights:
            weight.grad = torch.tensor(float(step)).expand(4)
        fast()
    expected = torch.arange(4.0) - 0.1 * (0 + 1 + 2)
    torch.testing.assert_close(weights[0].detach(), expected)
