"""flex_attention's Triton kernel, run by Triton's interpreter: values and logarithms of sums beside
the whole matrix of scores in float64.
"""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import tracer_core
from inductor_backend.codegen.triton import wrapper
from inductor_backend.codegen.triton.flex_attention import forward_kernels
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.fx_capture.test_torch_flex_attention import dense, positions

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

HEADS = 2
DOCUMENTS = torch.arange(300) // 70
BIAS = torch.randn(HEADS, 300, 300)
SLOPES = torch.rand(HEADS)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def causal(b, h, q, kv):
    return q >= kv


def document(b, h, q, kv):
    return (DOCUMENTS[q] == DOCUMENTS[kv]) & (q >= kv)


def nothing(b, h, q, kv):
    return (q + kv < 40) & (q > 5)


def softcap(score, b, h, q, kv):
    return 5 * torch.tanh(score / 5)


def alibi(score, b, h, q, kv):
    return score + SLOPES[h] * (kv - q)


def relative(score, b, h, q, kv):
    return score + BIAS[h, q, kv]


def backwards(score, b, h, q, kv):
    return score + DOCUMENTS[q - kv] * 0.1 + torch.where(q * 70000 * 70000 > kv, 0.5, 0.0)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "rows", "columns", "width", "options"),
    [
        (None, None, 128, 128, 32, {}),
        (relative, None, 70, 130, 24, {}),
        (softcap, document, 200, 200, 32, {}),
        (alibi, nothing, 130, 130, 16, {"BLOCK_SIZE": (64, 32)}),
        (None, document, 1, 256, 32, {}),
        (backwards, causal, 160, 160, 40, {"BLOCK_SIZE": 80}),
    ],
)
def test_forward(monkeypatch, score_mod, mask_mod, rows, columns, width, options):
    def attend(q, k, v):
        out, aux = flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        return out, aux.lse

    mask = mask_mod and create_block_mask(
        mask_mod, None, None, rows, columns, device="cpu", **options
    )
    q = torch.randn(2, HEADS, rows, width)
    k, v = (torch.randn(2, 1, columns, width) for _ in range(2))
    written = []
    monkeypatch.setattr(
        wrapper,
        "forward_kernels",
        lambda *inputs: written.append(forward_kernels(*inputs)) or written[-1],
    )
    with interpreted():
        out, lse = tracer_core.compile(attend, backend="inductor", fullgraph=True)(q, k, v)
    assert len(written) == 1
    shape = (2, HEADS, rows, columns)
    allowed = mask_mod and mask_mod(*positions(shape)).expand(shape)
    wanted, sums = dense(q, k, v, score_mod, allowed)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), sums, rtol=1e-5, atol=1e-5)


def few(b, h, q, kv):
    """The second row has no key at all."""
    return (kv % 7 < 5) & (q != 1)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mask_mod", [None, few], ids=["every key", "a mask"])
@pytest.mark.parametrize("rows", [1, 3])
def test_programs_share_the_keys_of_few_rows(monkeypatch, rows, mask_mod, dtype):
    """Decoding: what the parts of a walk found is combined."""
    columns, width = 900, 24
    written = []

    def keep(*value):
        kernels, besides = forward_kernels(*value)
        written.extend(kernel.label for kernel in kernels)
        return kernels, besides

    def attend(q, k, v):
        out, aux = flex_attention(
            q, k, v, score_mod=softcap, block_mask=mask, enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        return out, aux.lse

    mask = mask_mod and create_block_mask(mask_mod, None, None, rows, columns, device="cpu")
    monkeypatch.setattr(wrapper, "forward_kernels", keep)
    with interpreted():
        compiled = tracer_core.compile(attend, backend="inductor", fullgraph=True)
        for _ in range(2):
            q = torch.randn(2, HEADS, rows, width, dtype=dtype)
            k, v = (torch.randn(2, 1, columns, width, dtype=dtype) for _ in range(2))
            out, lse = compiled(q, k, v)
            shape = (2, HEADS, rows, columns)
            allowed = mask_mod and mask_mod(*positions(shape)).expand(shape)
            wanted, sums = dense(q, k, v, softcap, allowed)
            error = 1e-5 if dtype is torch.float32 else 2e-2
            torch.testing.assert_close(out.double(), wanted, rtol=error, atol=error)
            torch.testing.assert_close(lse.double(), sums, rtol=error, atol=error)
    assert written == ["flex_attention", "flex_attention_combine"]


@pytest.mark.parametrize("divisor", [41, 55])
def test_quotients_of_positions_are_exact_in_16_bits(divisor):
    """41 * (1 / 41) is less than 1 in float32."""
    bias = torch.randn(200)

    def grouped(b, h, q, kv):
        return torch.floor(q / divisor) == torch.floor(kv / divisor)

    def bucket(score, b, h, q, kv):
        return score / 7 + bias[torch.floor(kv / divisor).long()]

    inputs = [torch.randn(1, 1, 200, 16, dtype=torch.bfloat16) for _ in range(3)]
    mask = create_block_mask(grouped, None, None, 200, 200, device="cpu")

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod=bucket, block_mask=mask)

    with interpreted():
        actual = tracer_core.compile(attend, backend="inductor", fullgraph=True)(*inputs)
    shape = (1, 1, 200, 200)
    wanted, _ = dense(*inputs, bucket, grouped(*positions(shape)).expand(shape))
    torch.testing.assert_close(actual.double(), wanted, rtol=2e-2, atol=2e-2)


def test_a_captured_part_of_a_tensor():
    """The program reads it from its own first element on."""
    bias = torch.randn(3, HEADS, 64, 64)
    inputs = [torch.randn(1, HEADS, 64, 16) for _ in range(3)]

    def attend(q, k, v, bias):
        part = bias[1]
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + part[h, i, j])

    with interpreted():
        actual = tracer_core.compile(attend, backend="inductor", fullgraph=True)(*inputs, bias)
    wanted, _ = dense(*inputs, lambda s, b, h, i, j: s + bias[1][h, i, j])
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=1e-5)


def test_positions_beyond_32_bits_are_computed_in_64():
    from inductor_backend.codegen.common.scalar_programs import is_small_group
    from tracer_core.plugin_api import ScalarProgram, ScalarRef

    def program(factor: int) -> ScalarProgram:
        inputs = ("b", "h", "q", "kv")
        step = ("aten.mul.Tensor", (ScalarRef(2), factor), ())
        return ScalarProgram(inputs, (step,), ScalarRef(4))

    limits = dict.fromkeys(("b", "h", "q", "kv"), 4096)
    assert is_small_group(program(1000), limits, {})
    assert not is_small_group(program(1_000_000), limits, {})
    assert math.log2(4096 * 1_000_000) > 31
