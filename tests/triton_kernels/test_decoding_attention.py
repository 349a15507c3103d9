"""Attention of few queries over a cache: keys split over programs, grouped heads read once. Run by
Triton's interpreter, beside eager in float64.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.codegen.triton import wrapper
from inductor_backend.codegen.triton.decoding_attention import DecodingAttentionWriter
from inductor_backend.ir.nodes import ExternNode
from inductor_backend.ir.target import interpreted
from inductor_backend.kernels import decoding_attention
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import clones, compiled
from tests.inductor.test_operators import R

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """Triton interprets one after the other."""
    monkeypatch.setattr(decoding_attention, "PROGRAMS", 24)


KERNEL, ATEN = ["decoding_attention"], ["aten._scaled_dot_product_flash_attention_for_cpu.default"]


def attend(query, key, value, mask=None, **how):
    """Repeats heads of keys and values as models do, for an operator that takes as many as queries."""
    batch, heads, length, _ = key.shape
    count = query.shape[1] // heads
    if count > 1:
        key, value = (
            x[:, :, None].expand(-1, -1, count, -1, -1).reshape(batch, heads * count, length, -1)
            for x in (key, value)
        )
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **how)


def exact(fn, inputs):
    wide = [x.double() if torch.is_floating_point(x) else x for x in inputs]
    return fn(*wide)


def run(fn, *inputs):
    """Compares two calls with eager in float64; returns the operators that stay calls, and how many
    loops run beside them."""
    with interpreted():
        built = compiled(fn, *clones(inputs))
    expected, eager = exact(fn, inputs), fn(*inputs)
    error = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[eager.dtype]
    for _ in range(2):
        (actual,) = built(*clones(inputs))
        assert (actual.dtype, actual.stride()) == (eager.dtype, eager.stride())
        torch.testing.assert_close(actual.double(), expected, atol=error, rtol=error)
    nodes = built.compilation.program.nodes
    calls = [str(node.target) for node in nodes if isinstance(node, ExternNode)]
    loops = sum(group.extern is None for group in built.compilation.plan.groups)
    return calls, loops


def caches(batch=1, heads=8, shared=4, queries=1, keys=40, depth=16, dtype=torch.float32):
    query, key = R(batch, heads, queries, depth), R(batch, heads // shared, keys, depth)
    return [x.to(dtype) for x in (query, key, key.flip(2) + 1)]


def seen(keys, *queries):
    """Each query sees the keys before it, the last query all but the last three."""
    rows = torch.arange(*queries or (1,))[:, None] + keys - 3 - (queries or (1,))[0]
    return (torch.arange(keys) <= rows)[None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared", [1, 4, 8])
def test_grouped_heads_are_read_once(dtype, shared):
    assert run(attend, *caches(shared=shared, dtype=dtype), seen(40)) == (KERNEL, 0)


@pytest.mark.parametrize("queries", [2, 5, 16])
def test_several_queries_that_share_keys(queries):
    inputs = caches(batch=3, queries=queries, keys=100, dtype=torch.bfloat16)
    assert run(attend, *inputs, seen(100, queries)) == (KERNEL, 0)


@pytest.mark.parametrize("queries, shared", [(17, 4), (2, 1)])
def test_many_queries_and_several_that_share_no_keys_stay_with_aten(queries, shared):
    assert run(attend, *caches(queries=queries, shared=shared))[0] == ATEN


@pytest.mark.parametrize("depth", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_depths_of_heads(depth, dtype):
    assert run(attend, *caches(heads=4, keys=48, depth=depth, dtype=dtype), seen(48))[0] == KERNEL


def test_wider_heads_stay_with_aten():
    assert run(attend, *caches(heads=2, shared=2, depth=272))[0] == ATEN


@pytest.mark.parametrize("shape", [(1, 1, 1, 40), (3, 1, 5, 40), (3, 8, 5, 40), (5, 40), (1, 40)])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_of_every_shape(shape, kind):
    boolean = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    mask = boolean if kind == "boolean" else torch.where(boolean, R(*shape), -torch.inf)
    assert run(attend, *caches(batch=3, queries=5), mask) == (KERNEL, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_additive_masks_of_16_bits(dtype):
    assert run(attend, *caches(dtype=dtype), R(1, 1, 1, 40).to(dtype)) == (KERNEL, 0)


def test_a_mask_of_finite_numbers_that_hide():
    """As models wrote it before masks were boolean."""

    def fn(query, key, value, mask):
        return attend(query, key, value, (1 - mask.to(query.dtype)) * -1e4)

    assert run(fn, *caches(), seen(40)) == (KERNEL, 1)


def test_what_a_boolean_mask_adds_may_be_finite():
    """Where every key is hidden, all count."""

    def fn(query, key, value, mask):
        shown, hidden = (torch.scalar_tensor(x, dtype=query.dtype) for x in (0.0, -8.0))
        return attend(query, key, value, torch.where(mask, shown, hidden))

    assert run(fn, *caches(queries=2), seen(40, 2)) == (KERNEL, 0)
    assert run(fn, *caches(queries=2), seen(40, 2) & False) == (KERNEL, 0)


def additive(mask, dtype):
    return torch.where(mask, *(torch.scalar_tensor(x, dtype=dtype) for x in (0.0, -torch.inf)))


def test_a_mask_padded_for_wide_loads_is_read_before_that():
    """As ATen does for the operator that CUDA devices have."""

    def fn(query, key, value, mask):
        padded = F.pad(additive(mask, query.dtype), (0, 3))[..., :37].expand(1, 8, 1, 37)
        return attend(query, key, value, padded)

    assert run(fn, *caches(keys=37), seen(37)) == (KERNEL, 0)


@pytest.mark.parametrize("pad, length", [((0, 4), 36), ((0, 8), 36), ((3, 0), 40)])
def test_a_mask_padded_with_hidden_keys(pad, length):
    def fn(query, key, value, mask):
        hidden = F.pad(additive(mask, query.dtype), pad, value=-torch.inf)[..., :40]
        return attend(query, key, value, hidden)

    assert run(fn, *caches(keys=40), seen(length)) == (KERNEL, 1)


@pytest.mark.parametrize("keys", [40, 1024])
@pytest.mark.parametrize("queries", [1, 3])
def test_queries_that_see_no_key_get_zeros(keys, queries):
    mask = seen(keys, queries).clone()
    mask[:, :, -1] = False
    inputs = caches(keys=keys, queries=queries)
    assert run(attend, *inputs, mask) == (KERNEL, 0)
    with interpreted():
        built = compiled(attend, *inputs, mask)
    assert built(*inputs, mask)[0][:, :, -1].eq(0).all()


def test_a_sliding_window():
    keys = torch.arange(1024)
    mask = ((keys <= 900) & (keys > 900 - 128))[None, None, None]
    assert run(attend, *caches(keys=1024, dtype=torch.bfloat16), mask) == (KERNEL, 0)


def test_a_scale():
    assert run(lambda *x: attend(*x, scale=0.3), *caches())[0] == KERNEL


@pytest.mark.parametrize("queries", [1, 4])
def test_causal_from_the_first_key(queries):
    assert run(lambda *x: attend(*x, is_causal=True), *caches(queries=queries))[0] == KERNEL


@pytest.mark.parametrize("queries", [1, 4])
def test_fewer_heads_of_keys_than_of_queries(queries):
    def fn(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    assert run(fn, *caches(batch=2, queries=queries)) == (KERNEL, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keys", [1024, 1000, 200])
@pytest.mark.parametrize("shared", [1, 4])
def test_long_caches_are_read_by_several_programs(dtype, keys, shared):
    inputs = caches(batch=2, heads=4, keys=keys, shared=shared, dtype=dtype)
    assert run(attend, *inputs, seen(keys)) == (KERNEL, 0)


def test_more_rows_than_a_block_has():
    inputs = caches(heads=16, shared=8, queries=16, keys=200, dtype=torch.bfloat16)
    assert run(attend, *inputs, seen(200, 16)) == (KERNEL, 0)


def test_caches_that_are_not_contiguous():
    """Positions before heads, a part of a longer cache, and a query of such a projection."""
    query, key, value = caches(batch=3, keys=96, depth=32)
    key = key.transpose(1, 2).contiguous().transpose(1, 2)
    query = query.transpose(1, 2).contiguous().transpose(1, 2)
    assert run(attend, query, key, value) == (KERNEL, 0)

    def part(query, key, value):
        return attend(query, key[:, :, 8:72], value[:, :, 8:72])

    assert run(part, query, key, value) == (KERNEL, 0)


def test_layers_after_each_other():
    """They share the memory of what programs find, and the counters of those that have finished."""

    def layers(query, key, value, mask):
        query = attend(query, key, value, mask)
        query = attend(query, key[:, :, :200], value[:, :, :200])
        return attend(query, key, value, mask)

    assert run(layers, *caches(batch=2, keys=512), seen(512))[0] == KERNEL * 3


@pytest.mark.parametrize("masked", [False, True])
def test_caches_of_growing_length_are_one_kernel(masked, monkeypatch):
    """From the second length on it is a size of the graph."""
    lengths = []

    class Recorded(DecodingAttentionWriter):
        def write(self):
            lengths.append(self.keys)
            return super().write()

    monkeypatch.setattr(wrapper, "DecodingAttentionWriter", Recorded)

    def step(query, keys, values, key, value, mask):
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        return attend(query, keys, values, mask if masked else None)

    with interpreted():
        fast = tracer_core.compile(step, backend="inductor")
        for length in (7, 70, 71, 300, 1100):
            query, keys, values = caches(keys=length, depth=32)
            mask = torch.arange(length + 1)[None, None, None] < max(length - 3, 7)
            inputs = [query, keys, values, R(1, 2, 1, 32), R(1, 2, 1, 32), mask]
            actual, expected = fast(*inputs).double(), exact(step, inputs)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    first, symbol = lengths
    assert first == 8 and not isinstance(symbol, int)


def test_gradients():
    query, key, value = (x.requires_grad_() for x in caches())
    with interpreted():
        fast = tracer_core.compile(attend, backend="inductor")
        fast(query, key, value).sum().backward()
    ours = [x.grad.clone() for x in (query, key, value)]
    for x in (query, key, value):
        x.grad = None
    attend(query, key, value).sum().backward()
    torch.testing.assert_close(ours, [x.grad for x in (query, key, value)])
