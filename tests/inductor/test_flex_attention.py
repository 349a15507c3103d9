"""flex_attention's C++ kernels: values, logarithms of sums and gradients beside the whole matrix of
scores in float64. tests/fx_capture/test_torch_flex_attention.py has what holds for every backend."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import tracer_core
from inductor_backend import device_codegen
from inductor_backend.codegen.cpp.flex_attention import kernel_of
from tests.fx_capture.test_torch_flex_attention import dense, positions
from tests.support.attention import attend_by

BATCH, HEADS = 2, 4
BIAS = torch.randn(HEADS, 400)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


@pytest.fixture
def written(monkeypatch):
    """Labels of the kernels that were written."""
    actual = []

    def keep(*value):
        kernel = kernel_of(*value)
        actual.append(kernel.label)
        return kernel

    monkeypatch.setattr(device_codegen, "kernel_of", keep)
    return actual


def causal(b, h, q, kv):
    return q >= kv


def window(b, h, q, kv):
    return (q - kv).abs() <= 20


def early(b, h, q, kv):
    return (kv > 20) | (q < 3)


def few(b, h, q, kv):
    """Masks some rows as a whole, and all of a head."""
    return (q + kv < 40) & (q > 5) & (h != 1)


def softcap(score, b, h, q, kv):
    return 5 * torch.tanh(score / 5)


def relative(score, b, h, q, kv):
    return score + BIAS[h, q - kv]  # negative distances count from the end


def steep(score, b, h, q, kv):
    """Weights that underflow, and rows whose scores are minus infinity for one key."""
    return torch.where(kv == 3, -torch.inf, score * 40 - 2.0 * (q - kv).abs())


def whole(score, b, h, q, kv):
    """Integer division and wide positions."""
    return score + ((q * 3_000_000_000 - kv) // 7 % 5) * 0.1


def finite(results):
    return [torch.where(result.isfinite(), result, 0.0) for result in results]


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "rows", "columns", "widths", "shared", "options"),
    [
        (None, None, 70, 130, (24, 40), 2, {}),
        (softcap, causal, 200, 200, (32, 32), 4, {}),
        (relative, window, 150, 150, (16, 16), 1, {"BLOCK_SIZE": 80}),
        (None, few, 130, 130, (20, 16), 2, {"BLOCK_SIZE": (64, 32)}),
        (None, early, 192, 192, (16, 8), 4, {}),
        (steep, causal, 100, 100, (16, 16), 2, {"BLOCK_SIZE": 13}),
        (whole, None, 40, 70, (5, 7), 2, {}),
        (None, causal, 100, 100, (256, 200), 2, {}),
    ],
)
def test_values_and_gradients(written, score_mod, mask_mod, rows, columns, widths, shared, options):
    mask = mask_mod and create_block_mask(
        mask_mod, None, HEADS, rows, columns, device="cpu", **options
    )
    q = torch.randn(BATCH, rows, HEADS, widths[0]).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(BATCH, shared, columns, width, requires_grad=True) for width in widths)
    compiled = tracer_core.compile(attend_by(score_mod, mask), backend="inductor", fullgraph=True)
    actual = compiled(q, k, v)
    shape = (BATCH, HEADS, rows, columns)
    allowed = mask_mod and mask_mod(*positions(shape)).expand(shape)
    wanted = dense(q, k, v, score_mod, allowed)
    for item, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(item.double(), other, rtol=2e-5, atol=2e-5)
    weights = [torch.randn_like(item) for item in actual]
    gradients = torch.autograd.grad(finite(actual), [q, k, v], weights)
    exact = torch.autograd.grad(finite(wanted), [q, k, v], [weight.double() for weight in weights])
    for gradient, other in zip(gradients, exact, strict=True):
        # steep scores give large gradients, and small ones that are their differences
        near = 2e-5 * max(10.0, float(other.abs().max()))
        torch.testing.assert_close(gradient, other, rtol=2e-4, atol=near)
    assert written == ["flex_attention", "flex_attention_backward"]


def test_one_batch_of_keys(written):
    mask = create_block_mask(causal, BATCH, None, 90, 90, device="cpu")
    q = torch.randn(BATCH, HEADS, 90, 16, requires_grad=True)
    k, v = (torch.randn(1, 2, 90, 16, requires_grad=True) for _ in range(2))
    actual, _ = tracer_core.compile(attend_by(softcap, mask), backend="inductor")(q, k, v)
    shape = (BATCH, HEADS, 90, 90)
    wanted, _ = dense(q, k, v, softcap, causal(*positions(shape)).expand(shape))
    for item, other in zip(
        torch.autograd.grad(actual.square().sum(), [q, k, v]),
        torch.autograd.grad(wanted.square().sum(), [q, k, v]),
        strict=True,
    ):
        torch.testing.assert_close(item, other, rtol=2e-4, atol=2e-4)
    assert written == ["flex_attention", "flex_attention_backward"]


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits(written, dtype):
    mask = create_block_mask(causal, None, None, 150, 150, device="cpu")
    inputs = [torch.randn(1, h, 150, 24).to(dtype).requires_grad_() for h in (HEADS, 2, 2)]
    actual = tracer_core.compile(attend_by(softcap, mask, 0.3), backend="inductor")(*inputs)
    shape = (1, HEADS, 150, 150)
    wanted = dense(*inputs, softcap, causal(*positions(shape)).expand(shape), 0.3)
    assert actual[0].dtype is dtype and actual[1].dtype is torch.float32
    weights = [torch.randn_like(item) for item in actual]
    gradients = torch.autograd.grad(actual, inputs, weights)
    exact = torch.autograd.grad(wanted, inputs, [weight.double() for weight in weights])
    for item, other in zip([*actual, *gradients], [*wanted, *exact], strict=True):
        error = (item.double() - other.double()).norm() / other.double().norm()
        assert error < 4 * torch.finfo(dtype).eps, error
    assert written == ["flex_attention", "flex_attention_backward"]


def test_parts_of_one_tensor(written):
    """Query, key, value and a captured bias lie in one tensor, at other places than its start."""

    def attend(x, bias):
        q, k, v = (item.transpose(1, 2) for item in x.view(2, 60, 3, HEADS, 16).unbind(2))
        part = bias[1]
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + part[i, j])

    x, bias = torch.randn(2, 60, 3 * HEADS * 16, requires_grad=True), torch.randn(3, 60, 60)
    actual = tracer_core.compile(attend, backend="inductor", fullgraph=True)(x, bias)
    q, k, v = (item.transpose(1, 2) for item in x.view(2, 60, 3, HEADS, 16).unbind(2))
    wanted, _ = dense(q, k, v, lambda s, b, h, i, j: s + bias[1][i, j])
    torch.testing.assert_close(actual.double(), wanted, rtol=2e-5, atol=2e-5)
    (gradient,) = torch.autograd.grad(actual.square().sum(), x)
    (exact,) = torch.autograd.grad(wanted.square().sum(), x)
    torch.testing.assert_close(gradient, exact, rtol=2e-4, atol=2e-4)
    assert written == ["flex_attention", "flex_attention_backward"]


def test_an_index_out_of_range_raises(written):
    def attend(q, k, v, bias, places):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[places[j]])

    compiled = tracer_core.compile(attend, backend="inductor", fullgraph=True)
    *inputs, bias = *(torch.randn(1, 2, 40, 16) for _ in range(3)), torch.randn(50)
    assert compiled(*inputs, bias, torch.arange(10, 50)).isfinite().all()
    with pytest.raises(IndexError, match="out of (range|bounds)"):
        compiled(*inputs, bias, torch.arange(11, 51))
    assert compiled(*inputs, bias, torch.arange(-50, -10)).isfinite().all()
    assert written == ["flex_attention"]


def test_gradients_of_captured_tensors_are_aten_operators(written):
    def attend(q, k, v, bias):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i - j])

    bias = torch.randn(HEADS, 120, requires_grad=True)
    inputs = [torch.randn(1, HEADS, 60, 16, requires_grad=True) for _ in range(3)]
    actual = tracer_core.compile(attend, backend="inductor", fullgraph=True)(*inputs, bias)
    wanted, _ = dense(*inputs, lambda s, b, h, i, j: s + bias[h, i - j])
    for item, other in zip(
        torch.autograd.grad(actual.square().sum(), [*inputs, bias]),
        torch.autograd.grad(wanted.square().sum(), [*inputs, bias]),
        strict=True,
    ):
        torch.testing.assert_close(item, other, rtol=2e-4, atol=2e-4)
    assert written == ["flex_attention"]
