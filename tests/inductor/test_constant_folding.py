"""Masks and tables of positions, which no input has a part in, are computed when the graph is
compiled.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core

OPTIONS = [{"freeze": True}, None]


class Windows(nn.Module):
    """Attention in windows that are shifted, as Swin's: a mask that is written region by region, a
    table of positions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(13, 2))

    def forward(self, scores):
        mask = torch.zeros(14, 14)
        for number, (rows, columns) in enumerate(
            ((slice(0, -3), slice(0, -3)), (slice(-3, None), slice(0, -3)))
        ):
            mask[rows, columns] = number + 1
        mask = mask.view(2, 7, 2, 7).permute(0, 2, 1, 3).reshape(4, 49)
        mask = mask.unsqueeze(1) - mask.unsqueeze(2)
        mask = mask.masked_fill(mask != 0, -100.0)
        positions = torch.arange(49)
        distance = (positions[:, None] - positions[None, :]).abs().float()
        bucket = (torch.log1p(distance) * 3).long().clamp(max=12)
        bias = self.table[bucket].permute(2, 0, 1)
        return (scores + bias + mask.unsqueeze(1)).softmax(-1)


@pytest.mark.parametrize("options", OPTIONS, ids=["frozen", "default"])
def test_a_mask_and_a_table_of_positions(options, texts) -> None:
    torch.manual_seed(0)
    model = Windows().eval()
    fast = tracer_core.compile(model, options=options, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            scores = torch.randn(4, 2, 49, 49)
            torch.testing.assert_close(fast(scores), model(scores))
        model.table.mul_(2)
        torch.testing.assert_close(fast(scores), model(scores))
    assert not any("log1p" in text for text in texts)


@pytest.mark.parametrize("options", OPTIONS, ids=["frozen", "default"])
def test_a_known_tensor_that_is_returned_belongs_to_the_caller(options) -> None:
    model = nn.Linear(4, 4).eval()

    def program(x):
        table = torch.arange(6.0).exp()
        table[2:4] = 1.5
        return model(x), table, table[:3], table + x.sum() * 0

    fast = tracer_core.compile(program, options=options, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 4)
            ours, eager = fast(x), program(x)
            for one, other in zip(ours, eager, strict=True):
                torch.testing.assert_close(one, other)
            assert ours[1].data_ptr() == ours[2].data_ptr()
            ours[1].fill_(9)  # what the caller does to a result is not seen by later calls
            assert (ours[2] == 9).all()


def test_what_is_drawn_or_written_or_symbolic_is_computed_in_each_call() -> None:
    def drawn(x):
        return x + torch.rand(3, 4).cumsum(0)

    def sized(x):
        return x + torch.arange(x.shape[0]).cumsum(0)[:, None].sqrt()

    def written(x):
        count = torch.zeros(3, 4).cumsum(0)
        count.add_(x)
        x.copy_(count * 2)
        return count

    fast = tracer_core.compile(drawn, fullgraph=True)
    x = torch.randn(3, 4)
    torch.manual_seed(3)
    expected = [drawn(x), drawn(x)]
    torch.manual_seed(3)
    assert all(torch.equal(fast(x), item) for item in expected)
    fast = tracer_core.compile(sized, fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        y = torch.randn(rows, 4)
        torch.testing.assert_close(fast(y), sized(y))
    fast = tracer_core.compile(written, fullgraph=True)
    for _ in range(2):
        ours, eager = x.clone(), x.clone()
        torch.testing.assert_close(fast(ours), written(eager))
        torch.testing.assert_close(ours, eager)


def test_a_complex_table_is_no_constant_of_kernels():
    """Loops hold no complex numbers: they could not copy it out either."""

    def turned(x):
        turns = torch.polar(torch.ones(4), torch.arange(4).float())
        return torch.view_as_real(torch.view_as_complex(x + 1) * turns), turns.abs() * x[:, 0]

    x = torch.randn(4, 2)
    torch.testing.assert_close(tracer_core.compile(turned, backend="inductor")(x), turned(x))
