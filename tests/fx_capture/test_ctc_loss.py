"""ctc_loss whose lengths are tensors: one graph, also with gradients, whatever the lengths are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support.eager_reference import same
from tests.support.gradients import same_gradients

BACKENDS = ["eager", "aten_eager", "inductor"]
LENGTHS = [([9, 9, 9], [4, 4, 4]), ([9, 7, 5], [2, 1, 0]), ([3, 9, 8], [1, 3, 2])]


def calls(grad: bool = True, dtype: torch.dtype = torch.float64, flat: bool = False) -> list[Any]:
    actual = []
    for steps, targets in LENGTHS:
        torch.manual_seed(sum(steps))
        logits = torch.randn(9, 3, 6, dtype=dtype, requires_grad=grad)
        inputs = torch.randint(1, 6, (sum(targets),) if flat else (3, 4))
        actual.append((logits, inputs, torch.tensor(steps), torch.tensor(targets)))
    return actual


def loss_of(**options: Any) -> Any:
    def program(logits: Any, targets: Any, steps: Any, lengths: Any) -> Any:
        scores = logits.log_softmax(-1)
        return F.ctc_loss(scores, targets, steps, lengths, **options) * 2

    return program


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradients(backend: str, reduction: str) -> None:
    program = loss_of(reduction=reduction)
    same_gradients(lambda: program, *calls(), graphs=1, backend=backend)
    same_gradients(lambda: program, *calls(dtype=torch.float32), graphs=1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gradients(backend: str) -> None:
    same(loss_of(), *calls(False), graphs=1, backend=backend)
    same(loss_of(), *calls(False)[:1], backend=backend, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_targets_in_a_row(backend: str) -> None:
    same_gradients(lambda: loss_of(blank=0), *calls(flat=True), breaks=0, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_losses(backend: str) -> None:
    logits, targets, _, _ = calls()[0]
    inputs = logits, targets, torch.tensor([2, 9, 9]), torch.tensor([4, 4, 4])
    for zero in (False, True):
        program = loss_of(reduction="none", zero_infinity=zero)
        same_gradients(lambda: program, inputs, calls()[1], graphs=1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_sequence(backend: str) -> None:
    def program(logits: Any, targets: Any, steps: Any, lengths: Any) -> Any:
        scores = logits[:, 0].log_softmax(-1)
        return F.ctc_loss(scores, targets[:1], steps[:1], lengths[:1], zero_infinity=True)

    same_gradients(lambda: program, *calls(), graphs=1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_with_the_backward_inside(backend: str) -> None:
    def program(logits: Any, *rest: Any) -> Any:
        leaf = logits.detach().requires_grad_()
        loss_of()(leaf, *rest).backward()
        return leaf.grad * 3

    same(program, *calls(False), graphs=1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_lengths_raise_as_in_eager(backend: str) -> None:
    logits, targets, steps, lengths = calls(False)[0]
    seen = [(logits, targets, steps + 9, lengths), (logits, targets, steps, lengths + 9)]
    seen += [(logits, targets, steps[:2], lengths), (logits, targets, steps.float(), lengths)]
    same(loss_of(), (logits, targets, steps, lengths), *seen, breaks=None, backend=backend)


def test_other_sizes() -> None:
    sizes = [(n, k) for n in (3, 4, 5) for k in (6, 8)]
    inputs = [
        (
            torch.randn(k, n, 5),
            torch.randint(1, 5, (n, 3)),
            torch.full((n,), k),
            torch.full((n,), 2),
        )
        for n, k in sizes
    ]
    same(loss_of(), *inputs, backend="inductor")
