"""flex_attention's Triton kernels of gradients, run by Triton's interpreter, beside the gradients of
the whole matrix of scores in float64.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from torch.nn.attention.flex_attention import create_block_mask

import tracer_core
from inductor_backend.codegen.triton import wrapper
from inductor_backend.codegen.triton.flex_attention_backward import backward_kernels
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.fx_capture.test_torch_flex_attention import dense, positions
from tests.support.attention import attend_by
from tests.triton_kernels.test_flex_attention import (
    HEADS,
    alibi,
    backwards,
    causal,
    document,
    nothing,
    relative,
    softcap,
)

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


class Learned(torch.nn.Module):
    """A table by head and distance, a slope by row, a bias by column and a temperature."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        result = {"table": torch.randn(HEADS, 600) / 3, "slopes": torch.rand(160),
                "columns": torch.randn(160), "temperature": torch.tensor(1.5),
                "by_head": torch.randn(HEADS)}  # fmt: skip
        for name, value in result.items():
            setattr(self, name, torch.nn.Parameter(value.to(dtype)))

    def forward(self, score, b, h, q, kv):
        score = score * self.temperature + self.table[h, q - kv - 1] + self.columns[kv]
        return score - self.slopes[q].exp() * (q - kv).abs() * 0.01 + self.by_head[h]


def differentiated(results, leaves, weights):
    """Gradients of the rows that have a key."""
    results = [torch.where(result.isfinite(), result, 0.0) for result in results]
    return torch.autograd.grad(
        results, leaves, [w.to(r.dtype) for w, r in zip(weights, results, strict=True)]
    )


@pytest.fixture
def backwards_written(monkeypatch):
    written = []
    monkeypatch.setattr(
        wrapper,
        "backward_kernels",
        lambda *inputs: written.append(backward_kernels(*inputs)) or written[-1],
    )
    return written


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "rows", "columns", "width", "options"),
    [
        (None, None, 32, 64, 32, {}),
        (relative, None, 40, 70, 24, {}),
        (softcap, document, 90, 90, 32, {}),
        (alibi, nothing, 70, 70, 16, {"BLOCK_SIZE": (64, 32)}),
        (backwards, causal, 64, 64, 40, {"BLOCK_SIZE": 48}),
        (Learned(), causal, 70, 70, 16, {"BLOCK_SIZE": 64}),
        (Learned(), None, 64, 64, 16, {}),
    ],
)
def test_backward(backwards_written, score_mod, mask_mod, rows, columns, width, options):
    mask = mask_mod and create_block_mask(mask_mod, 2, None, rows, columns, device="cpu", **options)
    q = torch.randn(2, HEADS, rows, width, requires_grad=True)
    key_batch = 1 if options else 2  # one batch of keys for all queries
    k, v = (torch.randn(key_batch, 1, columns, width, requires_grad=True) for _ in range(2))
    leaves = [q, k, v, *(score_mod.parameters() if isinstance(score_mod, Learned) else ())]
    with interpreted():
        attend = attend_by(score_mod, mask)
        compiled = tracer_core.compile(attend, backend="inductor", fullgraph=True)
        actual = compiled(q, k, v)
        weights = [torch.randn_like(item) for item in actual]
        gradients = differentiated(actual, leaves, weights)
    assert [len(kernels) for kernels in backwards_written] == [2]
    shape = (2, HEADS, rows, columns)
    allowed = mask_mod and mask_mod(*positions(shape)).expand(shape)
    wanted = differentiated(dense(q, k, v, score_mod, allowed), leaves, weights)
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == other.dtype
        torch.testing.assert_close(gradient, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_backward_in_16_bits(backwards_written, dtype):
    mask = create_block_mask(causal, None, None, 72, 72, device="cpu")
    learned = Learned(dtype)
    inputs = [torch.randn(1, heads, 72, 32).to(dtype).requires_grad_() for heads in (HEADS, 1, 1)]
    leaves = [*inputs, *learned.parameters()]
    with interpreted():
        compiled = tracer_core.compile(attend_by(learned, mask, 0.2), backend="inductor")
        actual = compiled(*inputs)
        weights = [torch.randn_like(item) for item in actual]
        gradients = differentiated(actual, leaves, weights)
    assert [len(kernels) for kernels in backwards_written] == [2]
    shape = (1, HEADS, 72, 72)
    exact = dense(*inputs, learned, causal(*positions(shape)).expand(shape), 0.2)
    for gradient, other in zip(gradients, differentiated(exact, leaves, weights), strict=True):
        assert gradient.dtype is dtype
        error = (gradient.double() - other.double()).norm()
        size = max(other.double().norm(), 4)  # sums of positive and negative numbers may be small
        assert error < 8 * torch.finfo(dtype).eps * size, error


def test_backward_of_what_requires_grad(backwards_written):
    """Only kernels of gradients that somebody reads run."""
    mask = create_block_mask(causal, None, None, 64, 64, device="cpu")
    for needed, kernels in ((0, 1), (1, 1), (2, 1)):
        inputs = [torch.randn(1, HEADS, 64, 16, requires_grad=k == needed) for k in range(3)]
        with interpreted():
            out, _ = tracer_core.compile(attend_by(None, mask), backend="inductor")(*inputs)
            (actual,) = torch.autograd.grad(out.sum(), inputs[needed])
        (item,) = backwards_written
        assert len(item) == kernels
        backwards_written.clear()
        exact = dense(*inputs, None, causal(*positions((1, HEADS, 64, 64))))[0]
        (wanted,) = torch.autograd.grad(exact.sum(), inputs[needed])
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_sums_in_a_fixed_order_are_aten_operators(backwards_written):
    """Atomic additions are left to programs that allow any order."""
    learned = Learned()
    inputs = [torch.randn(1, HEADS, 64, 16, requires_grad=True) for _ in range(3)]
    torch.use_deterministic_algorithms(True)
    try:
        with interpreted():
            out, _ = tracer_core.compile(attend_by(learned, None), backend="inductor")(*inputs)
            actual = torch.autograd.grad(out.sum(), learned.table)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not backwards_written
    wanted = torch.autograd.grad(dense(*inputs, learned)[0].sum(), learned.table)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


def test_a_walk_ends_with_the_last_position():
    """The last block of the mask reaches beyond it, which mask_mod would allow."""

    def early(b, h, q, kv):
        return (kv > 20) | (q < 3)

    rows = 192
    mask = create_block_mask(early, None, None, rows, rows, device="cpu")
    inputs = [torch.randn(1, 1, rows, 16, requires_grad=True) for _ in range(3)]
    with interpreted():
        out, _ = tracer_core.compile(attend_by(None, mask), backend="inductor")(*inputs)
        actual = torch.autograd.grad(out.square().sum(), inputs)
    shape = (1, 1, rows, rows)
    wanted = dense(*inputs, None, early(*positions(shape)).expand(shape))[0]
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    for item, other in zip(actual, torch.autograd.grad(wanted.square().sum(), inputs), strict=True):
        torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-4)
