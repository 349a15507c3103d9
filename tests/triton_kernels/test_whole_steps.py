"""Whole training steps on GPUs: optimizers are a few kernels, and what changes from step to step is
read from memory.
"""

from __future__ import annotations

import copy

import pytest
import torch

import tracer_core
from inductor_backend import stages
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import R
from tests.support.training_steps import step, train_beside

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process"),
    pytest.mark.sweep(keep=2),
]

F = torch.nn.functional


def layers():
    """Parameters of equal sizes, twelve of them; counters of batches."""
    block = [
        m
        for _ in range(4)
        for m in (torch.nn.Linear(6, 6, bias=False), torch.nn.BatchNorm1d(6), torch.nn.Tanh())
    ]
    return torch.nn.Sequential(*block, torch.nn.Linear(6, 3))


@pytest.fixture
def compilations(monkeypatch):
    """The compilations that happen."""
    actual, run_stages = [], stages.run_stages

    def noted(c, until=None):
        actual.append(c)
        return run_stages(c, until)

    monkeypatch.setattr(stages, "run_stages", noted)
    return actual


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Adam", {"amsgrad": True}), ("AdamW", {"weight_decay": 0.1}), ("SGD", {"momentum": 0.9,
        "nesterov": True}),
        ("RMSprop", {"centered": True}), ("NAdam", {}),
    ],
)  # fmt: skip
def test_steps_with_numbers_that_change(kind, options, compilations):
    torch.manual_seed(0)
    theirs = layers()
    batches = ((torch.randn(20, 6), torch.randint(3, (20,))) for _ in range(4))
    with interpreted():
        train_beside(
            tracer_core.compile(step, fullgraph=True),
            (theirs, copy.deepcopy(theirs)),
            lambda parameters: getattr(torch.optim, kind)(parameters, lr=0.01, foreach=True,
            **options),
            lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
            batches, atol=1e-5, rtol=1e-4,
        )  # fmt: skip
    last = compilations[-1]
    assert len(compilations) <= 3
    assert last.runner.scalars  # a recording can read other numbers in each replay
    updates = [group for group in last.plan.groups if group.updates > 1]
    assert any(len(group.loops) >= 8 for group in updates)  # several parameters in a launch
    foreach = [
        s.extern.target
        for s in last.steps
        if s.extern is not None and "_foreach" in str(s.extern.target)
    ]
    assert foreach == []


def test_lists_of_several_dtypes_stay_with_aten(compilations):
    def fn(a, b, c):
        return torch._foreach_add([a, b], [b, c]), torch._foreach_mul([a, b], 2.0)

    inputs = R(5), R(5), R(5).double()
    with interpreted():
        results = tracer_core.compile(fn, fullgraph=True)(*inputs)
    torch.testing.assert_close(results, fn(*inputs), rtol=0, atol=0)
    (result,) = compilations
    names = [str(s.extern.target) for s in result.steps if s.extern is not None]
    assert names == ["aten._foreach_add.List"]


def accumulated(model, x, target):
    """Backwards that share kernels: the operand of one's loop is read after another's loop has
    stored its result.
    """
    model.zero_grad()
    for part in (slice(0, 4), slice(4, 8)):
        loss = F.cross_entropy(model(x[part]), target[part]) / 2
        loss.backward()
    return loss


def test_gradients_of_two_backwards_add_up():
    torch.manual_seed(0)
    theirs = torch.nn.Linear(6, 3)
    ours = copy.deepcopy(theirs)
    fast = tracer_core.compile(accumulated, fullgraph=True)
    with interpreted():
        for _ in range(2):
            x, target = torch.randn(8, 6), torch.randint(3, (8,))
            torch.testing.assert_close(fast(ours, x, target), accumulated(theirs, x, target))
            for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
                torch.testing.assert_close(q.grad, p.grad)
