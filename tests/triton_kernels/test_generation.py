"""A step of a language model that writes one token: one row times matrices, one query over a cache
that the step writes to. Run by Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.ir.nodes import ExternNode
from inductor_backend.ir.target import interpreted
from inductor_backend.kernels import decoding_attention
from inductor_backend.lowering import matmul
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import R

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Small matrices as well, and few programs, which Triton interprets one after the other."""
    monkeypatch.setattr(matmul, "MIN_LOOPED_MATRIX", 64)
    monkeypatch.setattr(decoding_attention, "PROGRAMS", 24)


def run(fn, *inputs, dynamic=False):
    """Compares with eager, mutated inputs too; returns the operators that stay calls and the number of
    kernels."""
    with interpreted():
        built = compiled(fn, *clones(inputs), dynamic=dynamic)
    for _ in range(2):
        ours, eager = clones(inputs), clones(inputs)
        results, expected = flat(built(*ours)), flat(fn(*eager))
        for actual, wanted in zip([*results, *ours], [*expected, *eager], strict=True):
            assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
            torch.testing.assert_close(actual, wanted, **tolerance(wanted.dtype), equal_nan=True)
    nodes = built.compilation.program.nodes
    calls = [str(node.target) for node in nodes if isinstance(node, ExternNode)]
    return calls, sum(group.extern is None for group in built.compilation.plan.groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_times_weights_is_a_kernel_with_what_follows(dtype):
    x, residual = R(1, 1, 32).to(dtype), R(1, 1, 24).to(dtype)
    weight, bias = R(24, 32).to(dtype), R(24).to(dtype)
    calls, kernels = run(
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, x, weight, bias, residual
    )
    assert (calls, kernels) == ([], 1)


def test_gate_and_up_of_a_feed_forward_network_are_one_kernel():
    x, gate, up, down = R(1, 32), R(48, 32), R(48, 32), R(32, 48)
    calls, kernels = run(
        lambda x, g, u, d: F.linear(F.silu(F.linear(x, g)) * F.linear(x, u), d), x, gate, up, down
    )
    assert (calls, kernels) == ([], 2)


def test_sums_of_16_bit_matmuls_are_float32():
    """4096 terms of 1/64: their sum in bfloat16 would stop at 4."""
    x, weight = torch.full((1, 4096), 0.125), torch.full((8, 4096), 0.125)
    calls, _ = run(F.linear, x.bfloat16(), weight.bfloat16())
    assert calls == []


@pytest.mark.parametrize(
    "why, inputs",
    {
        "two rows": (R(2, 32), R(24, 32).t()),
        "columns that are not contiguous": (R(1, 32), R(32, 24)),
        "float64": (R(1, 32).double(), R(24, 32).double().t()),
        "a small matrix": (R(1, 4), R(4, 4).t()),
    }.items(),
)
def test_other_matmuls_stay_calls(why, inputs):
    calls, _ = run(torch.mm, *inputs)
    assert calls == ["aten.mm.default"]


def cached(query, key, value, keys, values, position, mask):
    """Writes one position of a static cache of 2 heads, and attends with 6 over all of it."""
    keys.index_copy_(2, position, key)
    values.index_copy_(2, position, value)
    heads, length, width = query.shape[1], keys.shape[2], keys.shape[3]
    repeat = heads // keys.shape[1]
    wide = [
        cache[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(1, heads, length, width)
        for cache in (keys, values)
    ]
    return F.scaled_dot_product_attention(query, *wide, attn_mask=mask).transpose(1, 2)


def cache_inputs(dtype, length=40):
    row, cache = (1, 2, 1, 16), (1, 2, length, 16)
    tensors = [R(1, 6, 1, 16), R(*row), R(*row), R(*cache), R(*cache)]
    position = torch.tensor([9])
    mask = (torch.arange(length) <= position)[None, None, None]
    return [*(tensor.to(dtype) for tensor in tensors), position, mask]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_of_a_query_reads_the_cache_where_it_is(dtype):
    calls, kernels = run(cached, *cache_inputs(dtype))
    assert (calls, kernels) == (["decoding_attention"], 1)


def test_a_query_that_sees_no_key_gets_zeros():
    *inputs, mask = cache_inputs(torch.float32)
    run(cached, *inputs, mask & False)


def test_caches_of_several_lengths():
    """From the second length on it is a size of the graph."""
    with interpreted():
        fast = tracer_core.compile(cached, backend="inductor")
        for length in (40, 56, 72, 72):
            ours = cache_inputs(torch.float32, length)
            eager = clones(ours)
            torch.testing.assert_close(fast(*ours), cached(*eager))
            torch.testing.assert_close(ours, eager)


def test_two_writes_to_a_cache_keep_their_order():
    def step(cache, position, first, second):
        cache.index_copy_(0, position, first)
        cache.index_copy_(0, position, second)
        return cache.sum()

    calls, _ = run(step, R(8, 4), torch.tensor([3, 5]), R(2, 4), R(2, 4))
    assert calls == []


def test_what_is_added_at_indices_of_16_bits_stays_a_call():
    """It is summed in float32, in memory of its own, which the input's is not."""

    def step(cache, position, value):
        cache.index_add_(0, position, value)
        return cache * 2

    calls, _ = run(step, R(8, 4).bfloat16(), torch.tensor([3, 5]), R(2, 4).bfloat16())
    assert calls == ["aten.index_add_.default"]


def test_deterministic_algorithms_write_by_aten():
    torch.use_deterministic_algorithms(True)
    try:
        calls, _ = run(cached, *cache_inputs(torch.float32))
    finally:
        torch.use_deterministic_algorithms(False)
    assert calls == ["aten.index_copy_.default"] * 2 + ["decoding_attention"]
