"""Dropout inside Triton kernels, interpreted: Philox by the book, masks, gradients, seeds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.ir.values import const, make
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import compiled
from tests.inductor.reference import REFERENCE_OPS
from tracer_core.aot import rng_saved

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def drawn(x, p=0.4):
    return F.dropout(x * 2, p)


def run(fn, *inputs, **options):
    with interpreted():
        return tracer_core.compile(fn, options=options)(*inputs)


def sources(fn, *inputs):
    with interpreted():
        result = compiled(fn, *inputs)
    return result.compilation.runner.artifact


def test_philox_by_the_book():
    """The known answers of Random123: counter and key 0."""
    seed, place = torch.tensor(0), torch.tensor([0, 1, 2**33 + 5])
    actual = REFERENCE_OPS["philox"](
        make("philox", const(0, torch.int64), const(0, torch.int64)), seed, place
    )
    assert actual[0].item() == torch.tensor(0x6627E8D5).float().mul(4.6566127342e-10).item()
    assert 0 <= actual.min() and actual.max() < 1 and actual.unique().numel() == 3


def test_kernels_draw_philox_with_seeds_of_the_generator():
    x = torch.ones(5, 7)
    torch.manual_seed(3)
    result = run(lambda x: (F.dropout(x, 0.4), F.dropout(x, 0.2)), x)
    torch.manual_seed(3)
    seeds = torch.randint(0, 2**63 - 1, (2,))
    after = torch.rand(1)
    for dropped, seed, p in zip(result, seeds, (0.4, 0.2), strict=True):
        numbers = REFERENCE_OPS["philox"](None, seed, torch.arange(35)).reshape(5, 7)
        torch.testing.assert_close(dropped, (numbers < 1 - p) / (1 - p))
    torch.manual_seed(3)
    run(lambda x: (F.dropout(x, 0.4), F.dropout(x, 0.2)), x)
    assert torch.equal(torch.rand(1), after)


def test_one_kernel_and_one_draw():
    artifact = sources(lambda x: F.dropout(x.sin(), 0.5) * 3 + F.dropout(x, 0.3), torch.randn(6, 5))
    assert artifact.externs == ("aten.randint.low",) and artifact.kernels == 1


def test_gradients_have_the_forwards_mask():
    with interpreted():
        fast = tracer_core.compile(drawn)
        actual = []
        for _ in range(2):
            x = torch.ones(9, 11, requires_grad=True)
            result = fast(x)
            result.sum().backward()
            assert torch.equal(x.grad, result.detach())
            actual.append(result.detach())
    assert not torch.equal(*actual)


def test_a_checkpoint_computes_the_same_masks_again():
    from torch.utils.checkpoint import checkpoint

    def program(x):
        return checkpoint(lambda x: F.dropout(x.sin() * 2, 0.5), x, use_reentrant=False) * 1

    with interpreted():
        x = torch.ones(9, 11, requires_grad=True)
        result = tracer_core.compile(program)(x)
        result.sum().backward()
    kept = result.detach() != 0
    assert torch.equal(x.grad != 0, kept) and 0.2 < kept.float().mean() < 0.8


@pytest.mark.parametrize("drop", [F.dropout, lambda x, p: torch.native_dropout(x, p, True)[0]])
def test_a_gradient_of_a_gradient_has_the_forwards_mask(drop, monkeypatch):
    monkeypatch.setattr(rng_saved, "on_accelerator", lambda value: True)

    def program(x, w):
        dropped = drop(x * w, 0.4)
        return dropped, (dropped.square() * w).sum(), drop(dropped.sin(), 0.3)

    x = torch.linspace(1, 2, 99).reshape(9, 11).requires_grad_()
    w = torch.linspace(0.5, 1.5, 11).requires_grad_()
    with interpreted():
        dropped, loss, last = tracer_core.compile(program)(x, w)
        actual = torch.autograd.grad([loss, last.sum()], [x, w], create_graph=True)
        actual += torch.autograd.grad(sum(item.square().sum() for item in actual), [x, w])
    masks = [(item.detach() != 0) / (1 - p) for item, p in ((dropped, 0.4), (last, 0.3))]
    ours = x * w * masks[0]
    expected = torch.autograd.grad(
        (ours.square() * w).sum() + (ours.sin() * masks[1]).sum(), [x, w], create_graph=True
    )
    expected += torch.autograd.grad(sum(item.square().sum() for item in expected), [x, w])
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_nothing_is_drawn_for_certain(p):
    x = torch.ones(4, 5)
    assert torch.equal(run(lambda x: drawn(x, p), x), drawn(x, p))


def test_eagers_numbers_where_they_are_asked_for():
    x = torch.ones(40, 5)
    torch.manual_seed(2)
    expected = drawn(x)
    torch.manual_seed(2)
    assert torch.equal(run(drawn, x, fallback_random=True), expected)


def test_sizes_that_change():
    with interpreted():
        fast = tracer_core.compile(drawn, dynamic=True)
        for rows in (3, 17):
            result = fast(torch.ones(rows, 8))
            assert set(result.unique().tolist()) <= {0.0, 2 / (1 - 0.4)} or torch.allclose(
                result[result != 0], torch.tensor(2 / 0.6)
            )
