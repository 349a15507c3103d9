"""scaled_dot_product_attention with each of its arguments, torch.nn.attention.bias, varlen, and
transformers' flex_attention: one graph, with eager's values, strides and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as attention

import tracer_core
from tests.support.comparison import assert_same
from tracer_core.testing import CaptureCounter

BACKENDS = ("aten_eager", "inductor")
ROWS, COLUMNS = 33, 50

SOME = torch.rand(2, 1, ROWS, COLUMNS) > 0.3
SOME[..., 0] = True
NO_KEY = SOME.clone()
NO_KEY[:, :, 3] = False  # of one row


def tensors(*, rows=ROWS, columns=COLUMNS, heads=4, width=16, dtype=torch.float32):
    return [
        torch.randn(2, *sizes, dtype=dtype, requires_grad=True)
        for sizes in ((4, rows, 16), (heads, columns, 16), (heads, columns, width))
    ]


def check_gradients(attend, value, backend, tolerance=1e-5):
    """Two calls of the compiled function give eager's results and gradients."""
    compiled = tracer_core.compile(attend, backend=backend, fullgraph=True)
    leaves = [item for item in value if isinstance(item, torch.Tensor) and item.requires_grad]
    with CaptureCounter() as counter:
        for _ in range(2):
            torch.manual_seed(3)
            wanted = attend(*value)
            weight = torch.randn_like(wanted)
            exact = torch.autograd.grad(wanted, leaves, weight)
            torch.manual_seed(3)
            actual = compiled(*value)
            gradients = torch.autograd.grad(actual, leaves, weight)
            assert_same(actual, wanted, rtol=tolerance, atol=tolerance)
            assert_same(gradients, exact, rtol=tolerance, atol=tolerance, strides=False)
    assert len(counter.graphs) == 1


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": SOME},
        {"attn_mask": NO_KEY},
        {"attn_mask": torch.randn(ROWS, COLUMNS), "scale": 0.1},
        {"attn_mask": SOME, "enable_gqa": True},
        {"enable_gqa": True, "is_causal": True, "scale": 0.2},
        {"dropout_p": 0.5},
        {"dropout_p": 0.2, "attn_mask": SOME},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_arguments(backend, options):
    inputs = tensors(heads=2 if "enable_gqa" in options else 4)
    check_gradients(lambda q, k, v: attention(q, k, v, **options), inputs, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_that_is_learned(backend):
    mask = torch.randn(1, 4, ROWS, COLUMNS, requires_grad=True)
    check_gradients(lambda q, k, v, m: attention(q, k, v, m), [*tensors(), mask], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_widths_and_fewer_dimensions(backend):
    check_gradients(lambda q, k, v: attention(q, k, v), tensors(width=24), backend)
    for dims in (1, 2):  # without batches, without heads
        inputs = [tensor.detach()[(0,) * dims].clone().requires_grad_() for tensor in tensors()]
        check_gradients(lambda q, k, v: attention(q, k, v), inputs, backend)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    inputs = tensors(rows=40, columns=40, dtype=dtype)
    check_gradients(lambda q, k, v: attention(q, k, v, is_causal=True), inputs, "inductor",
         1e-9 if dtype is torch.float64 else 2e-2)  # fmt: skip


@pytest.mark.parametrize("made", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("sizes", [(ROWS, COLUMNS), (40, 40)])
def test_a_causal_bias_from_outside(made, sizes):
    bias = made(*sizes)
    inputs = tensors(rows=sizes[0], columns=sizes[1], heads=2)
    check_gradients(
        lambda q, k, v: attention(q, k, v, bias, enable_gqa=True, scale=0.3), inputs, "inductor"
    )
    check_gradients(
        lambda q, k, v: attention(q, k, v, attn_mask=bias, enable_gqa=True), inputs, "aten_eager"
    )


def test_a_causal_bias_and_is_causal():
    bias = causal_lower_right(ROWS, COLUMNS)

    def attend(q, k, v):
        return attention(q, k, v, bias, is_causal=True)

    for call in (attend, tracer_core.compile(attend, backend="aten_eager")):
        with pytest.raises(ValueError, match="causal=True"):
            call(*tensors())


@pytest.mark.gpu
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (16, 0)])
def test_sequences_of_many_lengths(window):
    """torch.nn.attention.varlen has kernels for GPUs only."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    ends = torch.tensor([0, 30, 31, 100], dtype=torch.int32, device="cuda")
    inputs = [
        torch.randn(100, 4, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for _ in range(3)
    ]

    def attend(q, k, v):
        return varlen.varlen_attn(q * 2, k, v, ends, ends, 69, 69, window_size=window) * 0.5

    check_gradients(attend, inputs, "inductor", 2e-2)


def test_transformers_flex_attention():
    """A model of shared heads: values and gradients of its sdpa form, forward and training step each
    in one graph."""
    pytest.importorskip("transformers")
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:  # an installation whose torchvision is of another torch
        pytest.skip(str(error))
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip

    def made(kind):
        return LlamaForCausalLM._from_config(copy.deepcopy(config), attn_implementation=kind)

    eager, model = made("sdpa"), made("flex_attention")
    model.load_state_dict(eager.state_dict())
    ids = torch.randint(0, 64, (2, 48))
    inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
    wanted = eager(**inputs)
    compiled = tracer_core.compile(model, fullgraph=True)
    with CaptureCounter() as counter, torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(**inputs).logits, wanted.logits)
    assert len(counter.graphs) == 1
    with CaptureCounter() as counter:
        actual = compiled(**inputs)
    assert len(counter.graphs) == 1
    actual.loss.backward()
    wanted.loss.backward()
    for (name, item), other in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(item.grad, other.grad, rtol=1e-4, atol=1e-5, msg=name)
