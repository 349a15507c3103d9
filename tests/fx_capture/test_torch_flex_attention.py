"""torch.nn.attention.flex_attention: one graph, with the values and gradients of the whole matrix
of scores in float64.

PyTorch's own eager form is no reference for gradients: it has none on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
    or_masks,
)

import tracer_core
from tests.support.eager_reference import compare_with_eager
from tracer_core.errors import GraphBreakError
from tracer_core.testing import CaptureCounter

BACKENDS = ("eager", "aten_eager", "inductor")
B, H, ROWS, WIDTH = 2, 4, 160, 16

DOCUMENTS = torch.arange(ROWS) // 50
BIAS = torch.randn(H, ROWS, ROWS)
SLOPES = torch.rand(H)


def causal(b, h, q, kv):
    return q >= kv


def document(b, h, q, kv):
    return DOCUMENTS[q] == DOCUMENTS[kv]


def window(b, h, q, kv):
    return (q - kv).abs() <= 20


def prefix(b, h, q, kv):
    return kv < 30 * (b + 1)


def by_head(b, h, q, kv):
    return (kv % (h + 2) == 0) | (q == kv)


def softcap(score, b, h, q, kv):
    return 5 * torch.tanh(score / 5)


def alibi(score, b, h, q, kv):
    return score + SLOPES[h] * (kv - q)


def relative(score, b, h, q, kv):
    return score + BIAS[h, q, kv]


def in_place(score, b, h, q, kv):
    score = score * 2
    score += 0.01 * kv
    return torch.where(q > 3, score, score.abs())


CASES = (
    (None, None), (None, causal), (softcap, and_masks(causal, document)), (alibi, by_head),
    (relative, or_masks(window, prefix)), (in_place, window),
)  # fmt: skip


def dense(
    query: Any, key: Any, value: Any, score_mod: Any = None, mask: Any = None, scale: Any = None
) -> tuple[Any, Any]:
    """Attention over the whole matrix of scores in float64: (result, logsumexp)."""
    query, key, value = query.double(), key.double(), value.double()
    batch, heads, rows, width = query.shape
    key, value = (
        item.expand(batch, -1, -1, -1).repeat_interleave(heads // key.shape[1], 1)
        for item in (key, value)
    )
    scores = query @ key.transpose(-1, -2) * (scale or 1 / math.sqrt(width))
    if score_mod is not None:
        scores = score_mod(scores, *positions(scores.shape))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return weights @ value, torch.logsumexp(scores, -1)


def positions(shape: Any) -> list[torch.Tensor]:
    """Batch, head, row and column of each score, which broadcast."""
    return [
        torch.arange(size).view([-1 if number == dim else 1 for number in range(4)])
        for dim, size in enumerate(shape)
    ]


def allowed(mask_mod: Any, shape: Any = (B, H, ROWS, ROWS)) -> Any:
    return None if mask_mod is None else mask_mod(*positions(shape)).expand(shape)


def tensors(grad: bool = False, heads: int = H, columns: int = ROWS, rows: int = ROWS) -> Any:
    def made(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, requires_grad=grad)

    return [made(B, H, rows, WIDTH), made(B, heads, columns, WIDTH), made(B, heads, columns, WIDTH)]


def close(actual: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    assert actual.shape == wanted.shape
    torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)


def one_graph(fn: Callable[..., Any], *calls: Any, graphs: int = 1, **options: Any) -> list[Any]:
    """Compiles with fullgraph=True and returns the results of the calls."""
    options.setdefault("backend", "eager")
    compiled = tracer_core.compile(fn, fullgraph=True, **options)
    with CaptureCounter() as counter:
        results = [compiled(*call) for call in calls]
    assert len(counter.graphs) == graphs, counter.graphs
    return results


# -- values and gradients --


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize(("score_mod", "mask_mod"), CASES)
def test_values_are_those_of_all_scores(score_mod, mask_mod):
    def attend(q, k, v):
        mask = mask_mod and create_block_mask(mask_mod, B, H, ROWS, ROWS, device="cpu")
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=mask)

    inputs = tensors()
    (actual,) = one_graph(attend, inputs, backend="aten_eager")
    close(actual, dense(*inputs, score_mod, allowed(mask_mod))[0])
    assert actual.dtype is torch.float32 and actual.is_contiguous()


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("score_mod", "mask_mod"), [(None, causal), (relative, document)])
def test_gradients(backend, score_mod, mask_mod):
    def attend(q, k, v):
        mask = create_block_mask(mask_mod, None, None, ROWS, ROWS, device="cpu")
        out, aux = flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, return_aux=AuxRequest(lse=True)
        )
        return out, aux.lse

    inputs, exact = tensors(grad=True), None
    (actual,) = one_graph(attend, inputs, backend=backend)
    exact = dense(*inputs, score_mod, allowed(mask_mod))
    for item, other in zip(actual, exact, strict=True):
        close(item, other)
    weights = [torch.randn_like(item) for item in actual]
    gradients = torch.autograd.grad(actual, inputs, weights)
    wanted = torch.autograd.grad(exact, inputs, [weight.double() for weight in weights])
    for gradient, other in zip(gradients, wanted, strict=True):
        close(gradient, other.double())


class Biased(nn.Module):
    """A bias by the distance, a slope and a temperature that are learned: of three, one and no
    dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(H, 2 * ROWS, 3) / 3)
        self.slopes = nn.Parameter(torch.rand(H))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def score_mod(self, score, b, h, q, kv):
        score = score * self.temperature + self.bias[h, q - kv + ROWS, b]
        return score - self.slopes.exp()[h] * (q - kv).abs() + self.bias[h, 0, b]

    def forward(self, q, k, v):
        return flex_attention(q, k, v, score_mod=self.score_mod)


@pytest.mark.parametrize("backend", BACKENDS)
def test_learned_tensors_in_score_mod(backend):
    model, inputs = Biased(), tensors(grad=True)
    actual = tracer_core.compile(model, backend=backend, fullgraph=True)(*inputs)
    exact = dense(*inputs, model.score_mod)[0]
    close(actual, exact)
    weight = torch.randn_like(actual)
    leaves = [*inputs, *model.parameters()]
    gradients = torch.autograd.grad(actual, leaves, weight)
    wanted = torch.autograd.grad(exact, leaves, weight.double())
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == other.dtype and gradient.shape == other.shape
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)


def test_indices_one_after_the_other():
    def attend(q, k, v, bias):
        def score_mod(score, b, h, i, j):
            return score + bias[h][i][j] * SLOPES[3] - SLOPES[h] * bias[0, i][j]

        return flex_attention(q, k, v, score_mod=score_mod)

    def at_once(score, b, h, i, j):
        return score + bias[h, i, j] * SLOPES[3] - SLOPES[h] * bias[0, i, j]

    inputs, bias = tensors(grad=True), BIAS.clone().requires_grad_()
    (actual,) = one_graph(attend, (*inputs, bias))
    wanted = dense(*inputs, at_once)[0]
    close(actual, wanted)
    weight = torch.randn_like(actual)
    gradients = torch.autograd.grad(actual, [*inputs, bias], weight)
    for gradient, other in zip(
        gradients, torch.autograd.grad(wanted, [*inputs, bias], weight.double()), strict=True
    ):
        close(gradient, other.double())


def test_detached_and_constant_scores():
    def detached(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + s.detach() * SLOPES[h])

    def constant(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: SLOPES[h] * j)

    for attend, score_mod in (
        (detached, lambda s, b, h, i, j: s + s.detach() * SLOPES[h]),
        (constant, lambda s, b, h, i, j: (SLOPES[h] * j).double().expand(B, H, ROWS, ROWS)),
    ):
        inputs = tensors(grad=True)
        (actual,) = one_graph(attend, inputs)
        wanted = dense(*inputs, score_mod)[0]
        close(actual, wanted)
        weight = torch.randn_like(actual)
        gradients = torch.autograd.grad(actual, inputs, weight, allow_unused=True)
        for item, other in zip(
            gradients, torch.autograd.grad(wanted, inputs, weight.double(), allow_unused=True),
            strict=True,
        ):  # fmt: skip
            close(item, torch.zeros_like(item).double() if other is None else other.double())


def test_rows_without_a_key():
    def attend(q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i + j < 0, 1, 1, ROWS, ROWS, device="cpu")
        out, aux = flex_attention(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    inputs = tensors(grad=True)
    for backend in BACKENDS:
        ((out, lse),) = one_graph(attend, inputs, backend=backend)
        assert torch.equal(out, torch.zeros_like(out)) and bool((lse == -math.inf).all())
        for gradient in torch.autograd.grad(out.sum(), inputs):
            assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(backend, dtype):
    def attend(q, k, v):
        mask = create_block_mask(causal, None, None, ROWS, ROWS, device="cpu")
        return flex_attention(q, k, v, score_mod=alibi, block_mask=mask)

    inputs = [tensor.to(dtype) for tensor in tensors()]
    (actual,) = one_graph(attend, inputs, backend=backend)
    assert actual.dtype is dtype
    close(actual, dense(*inputs, alibi, allowed(causal))[0], 1e-6 if dtype.itemsize == 8 else 2e-2)


# -- arguments --


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_heads_and_layouts(backend):
    def attend(q, k, v):
        out = flex_attention(q, k, v, score_mod=alibi, enable_gqa=True, scale=0.3)
        return out, flex_attention(q, k[:1], v[:1], block_mask=mask, enable_gqa=True)

    mask = create_mask_eagerly(causal, B)
    q, k, v = tensors(heads=2)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    ((first, second),) = one_graph(attend, (q, k, v), backend=backend)
    assert first.stride() == second.stride() == q.stride()
    close(first, dense(q, k, v, alibi, scale=0.3)[0])
    close(second, dense(q, k[:1], v[:1], None, allowed(causal))[0])


def create_mask_eagerly(mask_mod: Any, batch: int | None = None, heads: int | None = None) -> Any:
    return create_block_mask(mask_mod, batch, heads, ROWS, ROWS, device="cpu")


def test_kernel_options_are_accepted():
    def attend(q, k, v):
        return flex_attention(q, k, v, kernel_options={"BLOCK_M": 32, "PRESCALE_QK": True})

    def wrong(q, k, v):
        return flex_attention(q, k, v, kernel_options={"BACKEND": "NONE"})

    inputs = tensors()
    close(one_graph(attend, inputs)[0], dense(*inputs)[0])
    with pytest.raises(ValueError, match="NONE"):
        tracer_core.compile(wrong, backend="eager", fullgraph=True)(*inputs)


def test_errors_are_eagers():
    def attend(q, k, v):
        return flex_attention(q, k, v)

    def masked(q, k, v):
        return flex_attention(q, k, v, block_mask=mask)

    mask = create_mask_eagerly(causal)
    compare_with_eager(
        lambda: attend, tuple(tensors(heads=2)), tuple(tensors(columns=ROWS + 1))[:2] + (0,)
    )
    compare_with_eager(lambda: masked, tuple(tensors(columns=ROWS + 1)))


# -- block masks --


def test_a_block_mask_made_outside_is_read_anew():
    def attend(q, k, v, mask):
        return flex_attention(q, k, v, block_mask=mask)

    calls = [(*tensors(), create_mask_eagerly(value)) for value in (causal, causal, window, causal)]
    results = one_graph(attend, *calls, graphs=2)
    for mask_mod, call, result in zip(
        (causal, causal, window, causal), calls, results, strict=True
    ):
        close(result, dense(*call[:3], None, allowed(mask_mod))[0])


def test_documents_in_a_closure():
    def attend(q, k, v, mask):
        return flex_attention(q, k, v, block_mask=mask)

    def of(ids):
        return create_mask_eagerly(lambda b, h, i, j: (ids[b, i] == ids[b, j]) & (i >= j), B)

    def exact(ids, q, k, v):
        same = ids[:, None, :, None] == ids[:, None, None, :]
        return dense(q, k, v, None, (same & allowed(causal)).expand(B, H, ROWS, ROWS))[0]

    ids = [torch.randint(0, 4, (B, ROWS)).sort().values for _ in range(3)]
    calls = [(*tensors(), of(ident)) for ident in ids]
    for ident, call, actual in zip(ids, calls, one_graph(attend, *calls), strict=True):
        close(actual, exact(ident, *call[:3]))


def test_the_blocks_decide_what_is_masked():
    """Block (1, 0) is listed by nobody; the last one as full, where no mask_mod is asked."""
    counts = torch.tensor([[[1, 1]]], dtype=torch.int32)
    rows = torch.tensor([[[[0, 1], [1, 0]]]], dtype=torch.int32)
    full = torch.tensor([[[0, 1]]], dtype=torch.int32), torch.tensor([[[[0, 1], [1, 0]]]])

    def attend(q, k, v, counts, rows, full_counts, full_rows):
        mask = BlockMask.from_kv_blocks(
            counts, rows, full_counts, full_rows, (80, 80), causal, (ROWS, ROWS)
        )
        return flex_attention(q, k, v, block_mask=mask)

    kept = torch.zeros(ROWS, ROWS, dtype=torch.bool)
    kept[:80, :80] = kept[80:, 80:] = True
    inputs = tensors()
    for backend in BACKENDS:
        (actual,) = one_graph(
            attend, (*inputs, counts, rows, full[0], full[1].int()), backend=backend
        )
        wanted = kept & allowed(causal)
        wanted[..., 80:, 80:] = True
        close(actual, dense(*inputs, None, wanted)[0])


def test_create_block_mask_alone():
    def make(ids):
        return create_block_mask(
            lambda b, h, i, j: ids[b, i] >= ids[b, j], B, None, ROWS, ROWS, device="cpu",
            BLOCK_SIZE=32,
        )  # fmt: skip

    ids = torch.randint(0, 9, (B, ROWS)).sort().values
    compiled = tracer_core.compile(make, backend="aten_eager", fullgraph=True)
    for value in (ids, ids.flip(1).contiguous()):
        actual, wanted = compiled(value), make(value)
        assert actual.shape == wanted.shape and actual.BLOCK_SIZE == wanted.BLOCK_SIZE
        for name in BlockMask._TENSOR_ATTRS:
            attribute, other = getattr(actual, name), getattr(wanted, name)
            assert (attribute is None) == (other is None)
            if other is None:
                continue
            assert attribute.dtype == other.dtype and attribute.shape == other.shape
            counts = name.endswith("num_blocks")
            if counts:
                assert torch.equal(attribute, other), name
        assert torch.equal(actual.to_dense(), wanted.to_dense())
        assert actual.mask_mod(*(torch.tensor(1) for _ in range(4))).item()


def test_create_mask_has_eagers_layout():
    def masks(ids):
        return [
            create_mask(lambda b, h, i, j: ids[i] >= j, 2, 3, 40, 50, device="cpu"),
            create_mask(lambda b, h, i, j: (i + b) % 3 == h, 2, 3, 40, 50, device="cpu"),
            create_mask(
                lambda s, b, h, i, j: torch.where(i > j, s, -math.inf), 2, 3, 40, 50, "cpu"
            ),
        ]

    compare_with_eager(lambda: masks, (torch.randint(0, 50, (40,)),), breaks=0)


def test_one_query_over_a_cache():
    """Decoding: the offset is a tensor, the mask is sliced from that of the whole sequence."""

    def attend(q, k, v, at):
        def reached(b, h, i, j):
            return j <= i + at

        mask = create_block_mask(reached, None, None, 1, ROWS, device="cpu")
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    _, k, v = tensors(heads=2)
    calls = [(torch.randn(B, H, 1, WIDTH), k, v, torch.tensor(at)) for at in (3, 70, ROWS - 1)]
    for call, actual in zip(calls, one_graph(attend, *calls), strict=True):
        close(actual, dense(*call[:3], None, torch.arange(ROWS) <= call[3])[0])


def test_pages():
    """Keys lie in pages of a pool of one batch; the blocks lead to the pages, and mask_mod back to
    logical positions."""
    page, pages = 32, ROWS // 32
    order = torch.randperm(B * pages).view(B, pages)
    logical = torch.full((B, B * pages), -1)
    logical.scatter_(1, order, torch.arange(pages).expand(B, pages))

    def paged(b, h, q, kv):
        block = logical[b, kv // page]
        return (block >= 0) & (q >= block * page + kv % page)

    def attend(q, k, v, counts, rows):
        mask = BlockMask.from_kv_blocks(
            counts, rows, None, None, page, paged, (ROWS, B * ROWS), compute_q_blocks=False
        )
        return flex_attention(q, k, v, block_mask=mask)

    q, k, v = tensors()
    pool_k, pool_v = (torch.empty(1, H, B * ROWS, WIDTH) for _ in range(2))
    for pool, inputs in ((pool_k, k), (pool_v, v)):
        for batch in range(B):
            for number in range(pages):
                at = int(order[batch, number]) * page
                pool[0, :, at : at + page] = inputs[batch, :, number * page : (number + 1) * page]
    counts = torch.arange(1, pages + 1, dtype=torch.int32).expand(B, 1, pages).contiguous()
    rows = torch.zeros(B, 1, pages, B * pages, dtype=torch.int32)
    rows[..., :pages] = order[:, None, None]
    for backend in BACKENDS:
        (actual,) = one_graph(attend, (q, pool_k, pool_v, counts, rows), backend=backend)
        close(actual, dense(q, k, v, None, allowed(causal))[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_change(backend):
    def attend(q, k, v):
        rows, columns = q.shape[2], k.shape[2]

        def mask_mod(b, h, i, j):
            return i + columns - rows >= j

        mask = create_block_mask(mask_mod, None, None, rows, columns, device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    compiled = tracer_core.compile(attend, backend=backend, fullgraph=True)
    with CaptureCounter() as counter:
        for rows, columns in ((ROWS, ROWS), (140, 200), (190, 300), (300, 133)):
            inputs = tensors(rows=rows, columns=columns)
            shape = (B, H, rows, columns)
            wanted = dense(
                *inputs, None, allowed(lambda b, h, i, j: i + columns - rows >= j, shape)
            )
            close(compiled(*inputs), wanted[0])
    assert len(counter.graphs) <= (4 if backend == "aten_eager" else 2), counter.graphs


def test_numbers_that_change():
    class Window:
        size, slope = 10, 0.5

    def attend(q, k, v):
        def mask_mod(b, h, i, j):
            return (i - j).abs() <= settings.size

        def score_mod(s, b, h, i, j):
            return s - settings.slope * (i - j).abs()

        mask = create_block_mask(mask_mod, None, None, ROWS, ROWS, device="cpu")
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=mask)

    settings = Window()
    compiled = tracer_core.compile(attend, backend="inductor", fullgraph=True)
    for settings.size, settings.slope in ((10, 0.5), (30, 0.5), (17, 0.5), (17, 0.25), (5, 0.1)):
        inputs = tensors()
        wanted = dense(
            *inputs,
            lambda s, b, h, i, j: s - settings.slope * (i - j).abs(),
            allowed(lambda b, h, i, j: (i - j).abs() <= settings.size),
        )
        close(compiled(*inputs), wanted[0])


# -- what stays eager --


def test_functions_that_are_none_of_scalars():
    """The graph breaks, and the call is eager's."""

    def row_sum(s, b, h, i, j):
        return s + BIAS[h, i].sum()

    def drawn(s, b, h, i, j):
        return s + torch.rand_like(s) * 0

    def branch(s, b, h, i, j):
        return s if i > 3 else s * 2

    for score_mod in (row_sum, drawn, branch):

        def attend(q, k, v, score_mod=score_mod):
            return flex_attention(q, k, v, score_mod=score_mod)

        with pytest.raises(GraphBreakError, match="higher_order|data_dependent"):
            tracer_core.compile(attend, backend="eager", fullgraph=True)(*tensors())


def test_a_function_compiled_by_torch_is_captured():
    compiled_by_torch = torch.compile(flex_attention)

    def attend(q, k, v):
        mask = torch.compile(create_block_mask)(causal, None, None, ROWS, ROWS, device="cpu")
        return compiled_by_torch(q, k, v, block_mask=mask)

    inputs = tensors()
    close(one_graph(attend, inputs)[0], dense(*inputs, None, allowed(causal))[0])


def test_guards_follow_the_functions():
    """Another function, another captured number or tensor of another dtype: another graph."""
    table = {"score_mod": softcap}

    def attend(q, k, v):
        return flex_attention(q, k, v, score_mod=table["score_mod"])

    compiled = tracer_core.compile(attend, backend="eager", fullgraph=True)
    inputs = tensors()
    for value in (softcap, alibi, softcap, relative):
        table["score_mod"] = value
        close(compiled(*inputs), dense(*inputs, value)[0])
