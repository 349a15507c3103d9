"""Attention by our native kernels: scaled_dot_product_attention, and products and softmax written
by hand.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core

INF = float("inf")


def heads(batch: int, rows: int, count: int, depth: int) -> torch.Tensor:
    """As projections give them: (batch, head, row, value), heads side by side in memory."""
    return torch.randn(batch, rows, count * depth).view(batch, rows, count, depth).transpose(1, 2)


def check(function, *args, ours: int | None, texts, options=None) -> None:
    """Eager's values (at most three times its error against float64), sizes and strides, in two
    calls. ours: calls of our kernel."""
    fast = tracer_core.compile(function, fullgraph=True, options=options or {})
    with torch.no_grad():
        for _ in range(2):
            result, eager = fast(*args), function(*args)
            double = [
                a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
                for a in args
            ]
            exact = function(*double)
            assert (result.shape, result.stride(), result.dtype) == (
                eager.shape,
                eager.stride(),
                eager.dtype,
            )
            assert torch.equal(result.isnan(), eager.isnan())
            error, of_eager = (
                (t.nan_to_num() - exact.nan_to_num()).abs().max().item() for t in (result, eager)
            )
            assert error <= 3 * of_eager + 1e-6, (error, of_eager)
    if ours is not None:
        assert texts[-1].count("    run_attention(") == ours, texts[-1]


SIZES = {
    "one vector": (1, 1, 16, 16, 16),
    "bert 1x12": (1, 12, 12, 12, 64),
    "windows": (6, 3, 49, 49, 32),
    "odd": (2, 3, 37, 71, 24),
    "values cut": (1, 2, 5, 9, 7),
    "deep": (1, 2, 60, 60, 128),
    "long": (1, 2, 200, 330, 64),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(sizes, causal, texts) -> None:
    torch.manual_seed(0)
    batch, count, rows, keys, depth = sizes
    q, k, v = (
        heads(batch, rows, count, depth),
        heads(batch, keys, count, depth),
        heads(batch, keys, count, depth),
    )
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal) * 2,
        q,
        k,
        v,
        ours=1,
        texts=texts,
    )


@pytest.mark.parametrize(
    "shape", [(2, 3, 20, 30), (2, 1, 1, 30), (1, 1, 20, 30), (20, 30), (1, 3, 20, 1)], ids=str
)
def test_masks(shape, texts) -> None:
    torch.manual_seed(0)
    q, k, v = heads(2, 20, 3, 16), heads(2, 30, 3, 16), heads(2, 30, 3, 16)
    mask = torch.randn(shape)
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3),
        q, k, v, mask, ours=1, texts=texts,
    )  # fmt: skip
    spread = torch.randn(*shape, 2)[..., 0]
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        q,
        k,
        v,
        spread,
        ours=1,
        texts=texts,
    )
    kept = mask > 0
    check(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        q,
        k,
        v,
        kept,
        ours=1,
        texts=texts,
    )


def by_hand(q, k, v, *masks):
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    for mask in masks:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, dim=-1), v)


@pytest.mark.parametrize("masks", [[], [(2, 1, 1, 18)], [(1, 4, 18, 18), (2, 1, 18, 18)]], ids=str)
def test_products_and_softmax_are_one_operator(masks, texts) -> None:
    torch.manual_seed(0)
    q, k, v = (heads(2, 18, 4, 16) for _ in range(3))
    inputs = [torch.randn(shape) for shape in masks]
    check(
        lambda *a: by_hand(*a).transpose(1, 2).reshape(2, 18, 64),
        q,
        k,
        v,
        *inputs,
        ours=1,
        texts=texts,
    )
    check(by_hand, q, k, v, *inputs, ours=1, texts=texts)


def test_rows_that_see_no_key(texts) -> None:
    """0 in scaled_dot_product_attention, NaN where softmax is written out; beside them, the lowest
    number.
    """
    torch.manual_seed(0)
    q, k, v = (heads(1, 20, 2, 16) for _ in range(3))
    mask = torch.zeros(1, 1, 20, 20)
    mask[..., 3, :] = -INF
    mask[..., 5, 2:] = -INF
    mask[..., 7, :] = torch.finfo(torch.float32).min
    check(by_hand, q, k, v, mask, ours=1, texts=texts)
    check(F.scaled_dot_product_attention, q, k, v, mask, ours=1, texts=texts)
    check(by_hand, q, k, v, mask, mask, ours=1, texts=texts)


def test_values_that_are_not_finite(texts) -> None:
    torch.manual_seed(0)
    q, k, v = (heads(1, 20, 2, 16) for _ in range(3))
    q[0, 0, 4, 2] = float("nan")
    v[0, 1, 6, 3] = INF
    check(by_hand, q, k, v, ours=1, texts=texts)
    check(F.scaled_dot_product_attention, q, k, v, ours=1, texts=texts)


def test_what_others_read_stays(texts) -> None:
    torch.manual_seed(0)
    q, k, v = (heads(2, 12, 2, 16) for _ in range(3))

    def probabilities(q, k, v):
        p = torch.softmax(q @ k.mT, -1)
        return torch.cat([p @ v, p], -1)

    def scores(q, k, v):
        s = q @ k.mT
        return (torch.softmax(s, -1) @ v) + s.sum()

    def other_dim(q, k, v):
        return torch.softmax(q @ k.mT, -2) @ v

    def masked_then_scaled(q, k, v):
        return torch.softmax((q @ k.mT + q[..., :1]) * 0.5, -1) @ v

    def squared(q, k, v):
        return torch.softmax((q @ k.mT).square(), -1) @ v

    def product_of_one(q, k, v):
        return torch.softmax(q @ k.mT, -1) @ torch.softmax(q @ k.mT, -1)

    for function in (probabilities, scores, other_dim, masked_then_scaled, squared):
        check(function, q, k, v, ours=0, texts=texts)
    check(product_of_one, q, k, v, ours=1, texts=texts)
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        *(t.double() for t in (q, k, v)),
        ours=0,
        texts=texts,
    )


def test_views_that_cut_otherwise_than_by_heads(texts) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 8, 16), torch.randn(1, 4, 16, 8), torch.randn(1, 4, 8, 16)

    def first(q, k, v):
        scores = torch.bmm(q.view(1, 16, 32), k.view(1, 32, 16)).view(1, 4, 8, 8)
        return torch.bmm(torch.softmax(scores, -1).view(4, 8, 8), v.view(4, 8, 16)).view(
            1, 4, 8, 16
        )

    def second(q, k, v):
        scores = torch.bmm(q.view(4, 8, 16), k.view(4, 16, 8)).view(1, 4, 8, 8)
        return torch.bmm(torch.softmax(scores, -1).view(1, 16, 16), v.view(1, 16, 32)).view(
            1, 4, 8, 16
        )

    check(first, q, k, v, ours=0, texts=texts)
    check(second, q, k, v, ours=0, texts=texts)


def test_scales_that_float32_does_not_have(texts) -> None:
    torch.manual_seed(0)
    q, k, v = (heads(1, 12, 2, 16) for _ in range(3))
    small = q * 1e-20, k * 1e-20, v
    check(
        lambda q, k, v: torch.softmax((q @ k.mT) * 1e25 * 1e15, -1) @ v, *small, ours=0, texts=texts
    )
    # nothing is left of the scores in float32 (the truth in float64 is another one)
    vanishing = tracer_core.compile(
        by_steps := lambda q, k, v: torch.softmax((q @ k.mT) * 1e-30 * 1e-30 * 1e30 * 1e30, -1) @ v
    )
    large = tracer_core.compile(
        far := lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=1e40), fullgraph=True
    )
    with torch.no_grad():
        assert torch.allclose(vanishing(q, k, v), by_steps(q, k, v), atol=1e-6)
        assert torch.allclose(large(*small), far(*small), equal_nan=True)


def test_depths_that_change() -> None:
    torch.manual_seed(0)
    fast = tracer_core.compile(F.scaled_dot_product_attention, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, rows, depth in ((2, 9, 32), (3, 11, 40)):
            q, k, v = (torch.randn(batch, 4, rows, depth) for _ in range(3))
            assert torch.allclose(fast(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-5)


def windows(x, weight, bias, mask, count):
    """Swin's: the windows of an image are a dimension while its mask is added."""
    total, rows, width = x.shape
    q, k, v = (x @ weight.T).view(total, rows, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
    scores = (q * 0.25).matmul(k.transpose(-2, -1)) + bias
    scores = scores.view(total // count, count, 4, rows, rows) + mask.unsqueeze(1).unsqueeze(0)
    p = F.dropout(torch.softmax(scores.view(-1, 4, rows, rows), -1), 0.2, training=False)
    return p.matmul(v).transpose(1, 2).reshape(total, rows, width)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=str)
def test_windows_of_images(images, options, texts) -> None:
    torch.manual_seed(0)
    args = (
        torch.randn(images * 4, 49, 64),
        torch.randn(192, 64) / 8,
        torch.randn(1, 4, 49, 49),
        torch.randn(4, 49, 49),
    )
    check(lambda *a: windows(*a, 4), *args, ours=1, texts=texts, options=options)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(64, 192), nn.Linear(64, 64)
        self.drop = nn.Dropout(0.3)

    def forward(self, x, mask):
        batch, rows, _ = x.shape
        q, k, v = self.inputs(x).view(batch, rows, 3, 4, 16).permute(2, 0, 3, 1, 4)
        p = self.drop(torch.softmax(q @ k.transpose(-1, -2) * 0.25 + mask, -1))
        return self.output((p @ v).transpose(1, 2).reshape(batch, rows, 64))


@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=str)
def test_sizes_that_change(options, texts) -> None:
    torch.manual_seed(0)
    model = Layer().eval()
    fast = tracer_core.compile(model, fullgraph=True, dynamic=True, options=options)
    with torch.no_grad():
        for batch, rows in ((2, 9), (3, 40), (5, 17), (2, 600)):
            x, mask = torch.randn(batch, rows, 64), torch.randn(batch, 1, rows, rows)
            assert torch.allclose(fast(x, mask), model(x, mask), atol=2e-5)
    assert all("run_attention(" in text for text in texts)


def test_training_and_dropout_keep_their_operators(texts) -> None:
    torch.manual_seed(0)
    model = Layer()
    fast = tracer_core.compile(model, fullgraph=True)
    x, mask = torch.randn(2, 9, 64), torch.zeros(2, 1, 9, 9)
    fast(x, mask).sum().backward()
    assert model.inputs.weight.grad is not None
    with torch.no_grad():
        fast(x, mask)
    assert not any("run_attention(" in text for text in texts)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_heads(threads) -> None:
    torch.manual_seed(0)
    fast = tracer_core.compile(F.scaled_dot_product_attention, fullgraph=True)
    q, k, v = (heads(2, 64, 5, 32) for _ in range(3))
    before = torch.get_num_threads()
    with torch.no_grad():
        alone = fast(q, k, v)
        torch.set_num_threads(threads)
        try:
            together = fast(q, k, v)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together)


LAYERS = {
    "attention": lambda: nn.MultiheadAttention(64, 4, batch_first=True),
    "norms first": lambda: nn.TransformerEncoderLayer(
        64, 4, 96, batch_first=True, norm_first=True, activation="gelu"
    ),
    "norms last": lambda: nn.TransformerEncoderLayer(
        64, 4, 96, batch_first=True, layer_norm_eps=1e-3
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_are_one_operator_without_gradients(name, texts) -> None:
    """The fast paths of nn.MultiheadAttention and nn.TransformerEncoderLayer: no part of the graph
    is eager's.
    """
    torch.manual_seed(0)
    layer = LAYERS[name]().eval()
    for parameter in layer.parameters():  # biases are zero and scales one at first
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(3, 9, 64)

    def function(x):
        own = layer if x.dtype == torch.float32 else copy.deepcopy(layer).double()
        return own(x, x, x, need_weights=False)[0] if name == "attention" else own(x)

    fast = tracer_core.compile(lambda x: function(x) * 2)
    with torch.no_grad():
        result, exact = fast(x), function(x.double()) * 2
        eager = function(x) * 2
    assert len(texts) == 1 and texts[0].count("    run_attention(") == 1
    assert result.stride() == eager.stride()
    assert (result - exact).abs().max() <= 3 * (eager - exact).abs().max() + 1e-6


@pytest.mark.parametrize("name", LAYERS)
def test_such_layers_have_the_operators_own_strides(name) -> None:
    torch.manual_seed(0)
    layer, x = LAYERS[name]().eval(), torch.randn(9, 3, 64).transpose(0, 1)

    def function(x):
        return layer(x, x, x, need_weights=False)[0] if name == "attention" else layer(x)

    with torch.no_grad():
        result, eager = tracer_core.compile(function)(x), function(x)
    torch.testing.assert_close(result, eager)
    assert result.stride() == eager.stride()


@pytest.mark.parametrize("name", LAYERS)
def test_such_layers_under_autocast_have_eagers_dtype(name) -> None:
    """They cast inside themselves: the graph runs eagerly."""
    torch.manual_seed(0)
    layer, x = LAYERS[name]().eval(), torch.randn(3, 9, 64)

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x, x, x, need_weights=False)[0] if name == "attention" else layer(x)

    with torch.no_grad():
        assert torch.equal(tracer_core.compile(function)(x), function(x))


def test_a_layer_with_a_mask_stays_one_operator() -> None:
    """Rows that see nothing are the operator's own affair."""
    torch.manual_seed(0)
    layer, x = nn.MultiheadAttention(64, 4, batch_first=True).eval(), torch.randn(3, 9, 64)
    mask = torch.rand(9, 9) < 0.5
    mask[4] = True

    def function(x):
        return layer(x, x, x, need_weights=False, attn_mask=mask)[0] * 2

    with torch.no_grad():
        torch.testing.assert_close(tracer_core.compile(function)(x), function(x), equal_nan=True)


@pytest.mark.parametrize("trains", [False, True])
def test_the_query_is_laid_out_as_the_graph_says(trains):
    """A concatenation of one part is the part itself, whose strides are others: the result's
    strides follow the query's (Phi-3's partial rotary embedding; BackendError in training)."""

    def program(x):
        query = x.view(2, 10, 4, 16).transpose(1, 2)
        query = torch.cat([query * 0.3, query[..., :0]], -1)
        return F.scaled_dot_product_attention(query, query, query)

    x = torch.randn(2, 10, 64, requires_grad=trains)
    actual, expected = tracer_core.compile(program)(x), program(x)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()
    if trains:
        torch.testing.assert_close(
            *(torch.autograd.grad(out.square().sum(), x)[0] for out in (actual, expected))
        )


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("keys", [8, 513, 1100])
@pytest.mark.parametrize("training", [False, True])
def test_one_operand_contiguous_the_others_transposed(keys, training):
    def attend(q, k, v):
        q = q.transpose(1, 2).contiguous()
        return F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2))

    compiled = tracer_core.compile(attend, backend="inductor")
    for length in (keys, keys + 3, keys + 7):
        inputs = [torch.randn(2, length, 4, 16, requires_grad=training) for _ in range(3)]
        references = [item.detach().clone().requires_grad_(training) for item in inputs]
        ours, eager = compiled(*inputs), attend(*references)
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
        assert ours.stride() == eager.stride()
        if training:
            ours.sum().backward()
            eager.sum().backward()
            for value, reference in zip(inputs, references, strict=True):
                torch.testing.assert_close(value.grad, reference.grad, atol=1e-4, rtol=1e-3)
