"""Matmuls of rows in groups, each with a matrix of its own (mixtures of experts), in bfloat16 on CPUs
that multiply none: only the matrices of groups with rows are read."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from inductor_backend.kernels import native, selection
from inductor_backend.kernels.selection import GROUPED_FORM

pytestmark = [
    pytest.mark.skipif(native.lanes() == 4, reason="no vectors on this processor"),
    pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no _grouped_mm"),
]


@pytest.fixture(autouse=True)
def without_16_bit_instructions(monkeypatch):
    monkeypatch.setattr(selection, "multiplies_16_bits", lambda dtype: False)


def exact(x, w, ends):
    """In float64, group by group."""
    result, start = torch.zeros(len(x), w.shape[2], dtype=torch.float64), 0
    for matrix, end in zip(w.double(), ends.tolist(), strict=True):
        result[start:end] = x[start:end].double() @ matrix
        start = end
    return result


def check(fast, x, w, ends):
    with torch.no_grad():
        result, eager, expected = (
            fast(x, w, ends),
            torch._grouped_mm(x, w, offs=ends),
            exact(x, w, ends),
        )
    assert (result.shape, result.stride(), result.dtype) == (
        eager.shape, eager.stride(), eager.dtype,
    )  # fmt: skip
    last = int(ends[-1])
    error, of_eager = ((y.double() - expected)[:last].abs().max() for y in (result, eager))
    assert error <= 1.5 * of_eager + 1e-3
    assert not result[last:].any()  # eager leaves them uninitialized


def grouped(x, w, ends):
    return torch._grouped_mm(x, w, offs=ends)


GROUPS = {
    "some empty": [0, 2, 2, 3, 10],
    "one row each": [1, 2, 3, 4, 5],
    "one group": [0, 0, 60, 60, 60],
    "rows after the last": [1, 4, 4, 6, 7],
    "more rows than a block": [49, 50, 150, 151, 200],
}


@pytest.mark.parametrize("layout", ["as nn.Linear keeps it", "transposed"])
@pytest.mark.parametrize("name", GROUPS)
def test_groups(name, layout, texts):
    torch.manual_seed(0)
    fast = tracer_core.compile(grouped, fullgraph=True)
    ends = torch.tensor(GROUPS[name], dtype=torch.int32)
    for _ in range(2):
        x = torch.randn(max(GROUPS[name]) + 2, 72).bfloat16()
        w = torch.randn(5, 40, 72).bfloat16().mT
        check(fast, x, w if layout == "as nn.Linear keeps it" else w.contiguous(), ends)
    assert f"run_{GROUPED_FORM}(" in texts[-1]


def test_rows_that_change_their_number(texts):
    torch.manual_seed(0)
    fast = tracer_core.compile(grouped, fullgraph=True, dynamic=True)
    w = torch.randn(3, 32, 48, dtype=torch.bfloat16)
    for rows in (4, 9, 50, 3):
        ends = torch.tensor([rows // 2, rows // 2, rows], dtype=torch.int32)
        check(fast, torch.randn(rows, 32, dtype=torch.bfloat16), w, ends)
    assert len(texts) == 1


def test_operands_with_other_strides(texts):
    torch.manual_seed(0)
    fast = tracer_core.compile(grouped, fullgraph=True)
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    x, w = torch.randn(64, 8).bfloat16().t(), torch.randn(3, 128, 48).bfloat16()[:, ::2]
    check(fast, x, w.contiguous(), ends)
    check(fast, torch.randn(8, 128).bfloat16()[:, 64:], w.contiguous(), ends)


def test_any_number_of_threads_gives_the_same_bits():
    torch.manual_seed(0)
    fast, threads = tracer_core.compile(grouped, fullgraph=True), torch.get_num_threads()
    x, w = torch.randn(20, 512).bfloat16(), torch.randn(4, 512, 768).bfloat16()
    ends, results = torch.tensor([5, 5, 6, 20], dtype=torch.int32), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(fast(x, w, ends))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_processors_that_multiply_16_bits_take_more_rows_with_aten(texts, monkeypatch):
    monkeypatch.setattr(selection, "multiplies_16_bits", lambda dtype: True)
    torch.manual_seed(0)
    w, most = torch.randn(3, 32, 16).bfloat16(), selection.FEW_ROWS_BESIDE_ATEN[torch.bfloat16]
    for rows, few in ((most + 1, False), (most, True)):
        x, ends = torch.randn(rows, 32).bfloat16(), torch.tensor([1, 4, rows], dtype=torch.int32)
        fast = tracer_core.compile(grouped, fullgraph=True)
        torch.testing.assert_close(fast(x, w, ends), grouped(x, w, ends))
        assert any("run_grouped" in text for text in texts) == few


def test_gradients_are_eagers():
    torch.manual_seed(0)
    ends = torch.tensor([3, 3, 8], dtype=torch.int32)
    values = torch.randn(8, 32).bfloat16(), torch.randn(3, 32, 16).bfloat16()
    ours, eager = ([x.clone().requires_grad_() for x in values] for _ in range(2))
    tracer_core.compile(grouped, fullgraph=True)(*ours, ends).float().square().sum().backward()
    grouped(*eager, ends).float().square().sum().backward()
    for x, y in zip(ours, eager, strict=True):
        assert torch.allclose(x.grad.float(), y.grad.float(), atol=0.3, rtol=0.02)
