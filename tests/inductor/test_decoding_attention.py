"""Attention of few queries over many keys on CPUs: keys and values are read once, as they lie in the
cache, for all heads that share them.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import native
from inductor_backend.kernels.attention import DECODING, KEYS, KEYS_PER_QUERY
from inductor_backend.passes import float32_compute

INF = float("inf")


@pytest.fixture(autouse=True)
def without_16_bit_instructions(monkeypatch):
    monkeypatch.setattr(float32_compute, "multiplies_16_bits", lambda dtype: False)


pytestmark = pytest.mark.skipif(native.lanes() == 4, reason="no vectors on this processor")


def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Heads of keys or values as transformers repeats them for those of the query."""
    batch, fewer, length, width = x.shape
    wide = x[:, :, None].expand(batch, fewer, heads // fewer, length, width)
    return wide.reshape(batch, heads, length, width)


def attend(q, k, v, mask=None, **more):
    heads = q.shape[1]
    return F.scaled_dot_product_attention(q, repeated(k, heads), repeated(v, heads), mask, **more)


def operands(batch, heads, shared, queries, keys, depth, values=None, dtype=torch.float32):
    def tensor(*sizes):
        return torch.randn(sizes).to(dtype)

    q = tensor(batch, heads, queries, depth)
    return q, tensor(batch, shared, keys, depth), tensor(batch, shared, keys, values or depth)


def check(function, *args, launcher: str | None, texts, **options) -> None:
    """Eager's values (at most three times its error against float64), sizes and strides, in two calls;
    which kernel of ours computes them."""
    fast = tracer_core.compile(function, fullgraph=True, **options)
    with torch.no_grad():
        exact = function(*(x.double() if x.is_floating_point() else x for x in args))
        eager = function(*args)
        for _ in range(2):
            result = fast(*args)
            assert (result.shape, result.stride(), result.dtype) == (
                eager.shape, eager.stride(), eager.dtype,
            )  # fmt: skip
            assert torch.equal(result.isnan(), eager.isnan())
            error, of_eager = (
                (x.double().nan_to_num() - exact.nan_to_num()).abs().max() for x in (result, eager)
            )
            assert error <= 3 * of_eager + 1e-6, (error, of_eager)
    launchers = re.findall(r" (run_\w*attention\w*)\(", texts[-1])
    assert launchers == ([launcher] if launcher else [])


SIZES = {
    "a token": (1, 16, 4, 1, 2048, 64),
    "a short cache": (1, 8, 2, 1, 12, 64),
    "heads of their own": (2, 4, 4, 1, 300, 64),
    "one head of keys": (1, 71, 1, 1, 256, 64),
    "several queries": (2, 8, 2, 4, 517, 64),
    "many rows": (1, 32, 2, 16, 200, 32),
    "odd sizes": (3, 6, 3, 2, 77, 33),
    "wide heads": (1, 4, 2, 1, 300, 256),
    "few elements": (1, 4, 2, 1, 65, 7),
}


@pytest.mark.parametrize("dtype", DECODING, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_heads_that_share_keys(name, dtype, texts):
    torch.manual_seed(0)
    q, k, v = operands(*SIZES[name], dtype=dtype)
    check(attend, q, k, v, launcher=DECODING[dtype], texts=texts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 2])
def test_processors_that_multiply_16_bits(queries, dtype, texts, monkeypatch):
    """There ATen's attention of several queries is quick; that of one reads no cache faster."""
    monkeypatch.setattr(float32_compute, "multiplies_16_bits", lambda dtype: True)
    torch.manual_seed(0)
    args = operands(1, 8, 2, queries, 300, 64, dtype=dtype)
    check(attend, *args, launcher=DECODING[dtype] if queries == 1 else None, texts=texts)


def masks(batch, heads, queries, keys):
    positions = torch.arange(keys)
    return {
        "bools": torch.rand(batch, 1, queries, keys) > 0.3,
        "bools of heads": torch.rand(batch, heads, queries, keys) > 0.3,
        "a filled cache": (positions < 300).expand(batch, 1, 1, keys),
        "a window": ((positions > 400) & (positions < 500)).expand(batch, 1, queries, keys),
        "numbers": torch.randn(1, heads, 1, keys),
        "infinite numbers": torch.where(positions < 40, 0.5, -INF).expand(batch, 1, 1, keys),
        "every other key": (torch.rand(batch, 1, queries, 2 * keys) > 0.3)[..., ::2],
    }


@pytest.mark.parametrize("name", masks(1, 1, 1, 1))
@pytest.mark.parametrize("queries", [1, 3])
def test_masks(queries, name, texts):
    torch.manual_seed(0)
    q, k, v = operands(2, 8, 2, queries, 700, 64)
    mask = masks(2, 8, queries, 700)[name]
    check(attend, q, k, v, mask, launcher=DECODING[torch.float32], texts=texts)


def test_a_mask_that_hides_by_a_large_number(texts):
    """Where all keys are hidden, such a mask shows all of them."""
    torch.manual_seed(0)
    q, k, v = operands(2, 8, 2, 1, 600, 64)
    shown = torch.rand(2, 1, 1, 600) > 0.5
    shown[1] = False

    def hides(q, k, v, shown):
        return attend(q, k, v, torch.where(shown, 0.0, torch.finfo(torch.float32).min))

    check(hides, q, k, v, shown, launcher=DECODING[torch.float32], texts=texts)


def test_a_mask_that_adds_a_number_of_its_own_dtype(texts):
    """-3.013 is -3.015625 in bfloat16; scores of hidden keys are far apart, so that it shows."""
    torch.manual_seed(0)
    q, k, v = operands(1, 8, 2, 1, 600, 64, dtype=torch.bfloat16)
    shown = torch.rand(1, 1, 1, 600) > 0.5

    def lowers(q, k, v, shown):
        zero, number = (torch.scalar_tensor(x, dtype=torch.bfloat16) for x in (0.0, -3.013))
        return attend(q, k, v, torch.where(shown, zero, number))

    fast = tracer_core.compile(lowers, fullgraph=True)
    with torch.no_grad():
        mask = torch.where(shown, 0.0, -3.015625).double()
        exact = attend(q.double(), k.double(), v.double(), mask)
        assert (fast(q, k, v, shown).double() - exact).abs().max() < 2e-3
    (bits,) = torch.tensor([-3.015625]).view(torch.int32).tolist()
    (launch,) = [line for line in texts[-1].splitlines() if " run_decoding_attention_bf16(" in line]
    assert f" {bits}," in launch


def test_queries_without_visible_keys(texts):
    """0 in scaled_dot_product_attention, NaN where softmax is written out."""
    torch.manual_seed(0)
    q, k, v = operands(2, 4, 4, 1, 600, 64)
    shown = torch.ones(2, 1, 1, 600, dtype=torch.bool)
    shown[1] = False
    check(attend, q, k, v, shown, launcher=DECODING[torch.float32], texts=texts)

    def by_hand(q, k, v, shown):
        scores = q @ k.transpose(2, 3) * 0.125 + torch.where(shown, 0.0, -INF)
        return torch.softmax(scores, -1) @ v

    check(by_hand, q, k, v, shown, launcher=DECODING[torch.float32], texts=texts)


@pytest.mark.parametrize("depth, values", [(33, 40), (7, 5), (64, 200)])
def test_values_of_another_size(depth, values, texts):
    """Softmax written out: scaled_dot_product_attention writes it out so, too, but scales q and k."""
    torch.manual_seed(0)

    def by_hand(q, k, v):
        k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
        return torch.softmax(q @ k.transpose(2, 3) * 0.125, -1) @ v

    args = operands(2, 6, 3, 1, 500, depth, values)
    check(by_hand, *args, launcher=DECODING[torch.float32], texts=texts)


def test_hidden_keys_are_not_read(texts):
    """What lies in the rest of a cache does not matter, be it NaN."""
    torch.manual_seed(0)
    q, k, v = operands(1, 8, 2, 1, 1024, 64)
    shown = (torch.arange(1024) < 256).expand(1, 1, 1, 1024)
    fast = tracer_core.compile(attend, fullgraph=True)
    with torch.no_grad():
        expected = attend(q, k, v, shown)
        k[:, :, 256:], v[:, :, 256:] = math.nan, INF
        assert torch.allclose(fast(q, k, v, shown), expected, atol=1e-6)


def test_numbers_that_are_no_numbers(texts):
    torch.manual_seed(0)
    q, k, v = operands(4, 4, 2, 1, 600, 64)
    k[0, 0, 300, 5], v[1, 1, 599, 7], q[2, 0, 0, 1], k[3, 0, 20, 9] = math.nan, INF, math.nan, INF
    check(attend, q, k, v, launcher=DECODING[torch.float32], texts=texts)


@pytest.mark.parametrize("queries", [2, 5, 16])
def test_causal_queries(queries, texts):
    torch.manual_seed(0)
    q, k, v = operands(2, 8, 4, queries, 300, 64)
    check(
        lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.2),
        q, k, v, launcher=DECODING[torch.float32], texts=texts,
    )  # fmt: skip


def test_which_kernel_computes_several_queries(texts):
    """Keys that 16 queries share are read once, for 17 they are transposed first; so are those of heads
    of their own that fit into the cache, and those of queries that are many beside them."""
    torch.manual_seed(0)
    few, transposed = DECODING[torch.float32], "run_attention"
    most = KEYS[native.lanes()]
    for sizes, launcher in (
        ((1, 4, 2, 16, 200, 32), few),
        ((1, 4, 2, 17, 200, 32), transposed),
        ((1, 4, 4, 2, most, 32), transposed),
        ((1, 4, 4, 2, most + 1, 32), few),
        ((1, 4, 2, 4, 4 * KEYS_PER_QUERY, 32), few),
        ((1, 4, 2, 4, 4 * KEYS_PER_QUERY - 1, 32), transposed),
        ((1, 4, 2, 1, 100, 257), None),
    ):
        check(attend, *operands(*sizes), launcher=launcher, texts=texts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_cache_that_grows(dtype, texts):
    """One graph for all lengths; a new key is appended in each step."""
    torch.manual_seed(0)
    q, k, v = operands(1, 8, 2, 1, 40, 64, dtype=dtype)

    def step(q, k, v, key, value):
        k, v = torch.cat([k, key], 2), torch.cat([v, value], 2)
        return attend(q, k, v), k, v

    fast = tracer_core.compile(step, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for _ in range(20):
            new = [torch.randn(1, 2, 17, 64).to(dtype) for _ in range(2)]
            (result, k_ours, v_ours), (expected, k, v) = fast(q, k, v, *new), step(q, k, v, *new)
            assert torch.equal(k, k_ours) and torch.equal(v, v_ours)
            tolerance = 1e-6 if dtype == torch.float32 else 4e-3
            assert torch.allclose(result, expected, atol=tolerance, rtol=0)
    assert len(texts) == 1


def test_a_cache_that_is_written_in_place(texts):
    torch.manual_seed(0)
    keys, values = torch.zeros(1, 2, 512, 64), torch.zeros(1, 2, 512, 64)

    def step(q, keys, values, key, value, place):
        keys.index_copy_(2, place, key)
        values.index_copy_(2, place, value)
        return attend(q, keys, values, (torch.arange(512) <= place)[None, None, None])

    fast = tracer_core.compile(step, fullgraph=True)
    ours = keys.clone(), values.clone()
    with torch.no_grad():
        for n in (0, 1, 255, 256, 511):
            new = torch.randn(1, 8, 1, 64), *(torch.randn(1, 2, 1, 64) for _ in range(2))
            place = torch.tensor([n])
            expected = step(new[0], keys, values, *new[1:], place)
            assert torch.allclose(fast(new[0], *ours, *new[1:], place), expected, atol=1e-6)
            assert torch.equal(ours[0], keys) and torch.equal(ours[1], values)
    assert DECODING[torch.float32] in texts[-1]


def test_any_number_of_threads_gives_the_same_bits():
    torch.manual_seed(0)
    args = operands(2, 8, 2, 3, 2000, 64, dtype=torch.bfloat16)
    fast, threads, results = (
        tracer_core.compile(attend, fullgraph=True),
        torch.get_num_threads(),
        [],
    )
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append(fast(*args))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_gradients_keep_atens_attention(texts):
    torch.manual_seed(0)
    ours = [x.requires_grad_() for x in operands(1, 4, 2, 1, 100, 32)]
    eager = [x.detach().clone().requires_grad_() for x in ours]
    tracer_core.compile(attend, fullgraph=True)(*ours).sum().backward()
    attend(*eager).sum().backward()
    for x, y in zip(ours, eager, strict=True):
        assert torch.allclose(x.grad, y.grad, atol=1e-5)
    assert not any("run_decoding_attention" in text for text in texts)
