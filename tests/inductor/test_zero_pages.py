"""Gradients of large tables: the rows that no token reads are memory that nothing was written to."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import tracer_core
from inductor_backend.runtime import huge_pages
from inductor_backend.runtime.huge_pages import MIN_ZERO_PAGES, large_zeros
from tests.support.comparison import assert_same

WIDTH = 256
TOKENS = MIN_ZERO_PAGES // (4 * WIDTH) + 7

#: name -> what is looked up in a table at indices.
LOOKUPS = {
    "embedding": lambda table, at: functional.embedding(at, table),
    "embedding with padding": lambda table, at: functional.embedding(at, table, padding_idx=3),
    "index": lambda table, at: table[at],
    "index of two dimensions": lambda table, at: table[at.view(4, -1)] * 2,
    "index_select": lambda table, at: table.index_select(0, at),
    "gather": lambda table, at: table.gather(0, at[:, None].expand(-1, WIDTH)),
}


def gradient(function, table, at):
    table = table.detach().requires_grad_()
    function(table, at).square().sum().backward()
    return table.grad


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", LOOKUPS)
def test_gradients_of_a_few_rows(name, texts):
    torch.manual_seed(0)
    fast, table = tracer_core.compile(LOOKUPS[name]), torch.randn(TOKENS, WIDTH)
    for _ in range(2):  # other rows in memory that was used
        at = torch.randint(TOKENS, (64,)).index_fill(0, torch.tensor([5]), 3)
        at[7] = at[6]
        assert_same(gradient(fast, table, at), gradient(LOOKUPS[name], table, at))
    (backward,) = (text for text in texts if "large_zeros((" in text)
    assert "fused_scatter_base" not in backward


@pytest.mark.parametrize(("tokens", "looked_up"), [(TOKENS, TOKENS // 8), (TOKENS // 2, 64)])
def test_many_rows_and_smaller_tables_are_filled(tokens, looked_up, texts):
    function = LOOKUPS["embedding"]
    table, at = torch.randn(tokens, WIDTH), torch.randint(tokens, (looked_up,))
    fast = tracer_core.compile(function)
    assert_same(gradient(fast, table, at), gradient(function, table, at))
    assert not any("large_zeros((" in text for text in texts)


def test_a_step_that_adds_to_the_gradient_and_clips_it():
    def step(model, run):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=10.0)  # AdamW turns rounding into steps
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                run(torch.randint(TOKENS, (4, 9))).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
        return list(model.parameters())

    eager, compiled = (make_model() for _ in range(2))
    assert_same(step(compiled, tracer_core.compile(compiled)), step(eager, eager))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_memory_is_zero_and_may_be_written(dtype):
    sizes = (MIN_ZERO_PAGES // (dtype.itemsize * 100) + 1, 100)
    for _ in range(3):
        result = large_zeros(sizes, (100, 1), dtype)
        assert result.count_nonzero() == 0
        assert result.fill_(1).sum(dtype=torch.float64) == result.numel()
        result.resize_(sizes[0] * 2, 100)


def test_memory_whose_pages_stay_is_filled(monkeypatch):
    monkeypatch.setattr(huge_pages, "_MADVISE", lambda *_: 0)
    for _ in range(2):
        result = large_zeros((MIN_ZERO_PAGES // 4,), (1,), torch.float32)
        assert result.count_nonzero() == 0
        result.fill_(1)


def test_negative_zeros_stay():
    """A result that is filled with -0.0 keeps its sign where nothing is added."""

    def run(ids, values):
        base = torch.full((200_000, 64), -0.0)
        return base.index_add(0, ids, values)

    ids, values = torch.tensor([3, 70_000]), torch.randn(2, 64)
    result = tracer_core.compile(run)(ids, values)
    assert_same(result, run(ids, values))
    assert torch.signbit(result[5]).all()
