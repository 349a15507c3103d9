"""LSTM layers whose weights are constants, or that have enough steps: our kernel for their
steps.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.kernels.native import lanes
from tests.support.comparison import assert_as_accurate_as_eager

FREEZE = {"freeze": True}


def flat(result) -> list[torch.Tensor]:
    y, (hidden, cells) = result
    return [y, hidden, cells]


LAYERS = {
    "one": {},
    "two, batch first": {"num_layers": 2, "batch_first": True},
    "both ways": {"bidirectional": True, "num_layers": 2},
    "no bias": {"bias": False},
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("sizes", [(1, 9, 24, 32), (7, 5, 40, 48), (13, 4, 256, 256)], ids=str)
def test_layers_are_eager_s_within_rounding(settings, sizes, texts) -> None:
    torch.manual_seed(0)
    batch, steps, width, units = sizes
    model = nn.LSTM(width, units, **settings).eval()
    fast = tracer_core.compile(model, options=FREEZE, fullgraph=True)
    count = settings.get("num_layers", 1) * (2 if settings.get("bidirectional") else 1)
    sequence = (batch, steps, width) if settings.get("batch_first") else (steps, batch, width)
    with torch.no_grad():
        for scale in (1.0, 4.0):
            x = torch.randn(sequence) * scale
            state = (torch.randn(count, batch, units), torch.randn(count, batch, units))
            assert_as_accurate_as_eager(fast(x), model, x, floor=3e-7)
            assert_as_accurate_as_eager(fast(x, state), model, x, state, floor=3e-7)
    if units % lanes() == 0:
        assert all("run_lstm(" in text and "mkldnn_rnn_layer" not in text for text in texts)


def test_lengths_and_batches_that_change() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(32, 64, batch_first=True).eval()
    fast = tracer_core.compile(model, options=FREEZE, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for batch, steps in ((2, 5), (3, 7), (4, 2)):
            x = torch.randn(batch, steps, 32)
            assert_as_accurate_as_eager(fast(x), model, x, floor=3e-7)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_units(threads: int) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(64, 320).eval()
    fast = tracer_core.compile(model, options=FREEZE, fullgraph=True)
    x = torch.randn(6, 5, 64)
    before = torch.get_num_threads()
    with torch.no_grad():
        alone = flat(fast(x))
        torch.set_num_threads(threads)
        try:
            together = flat(fast(x))
        finally:
            torch.set_num_threads(before)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


def test_results_do_not_share_memory() -> None:
    model = nn.LSTM(16, 32).eval()
    fast = tracer_core.compile(model, options=FREEZE, fullgraph=True)
    with torch.no_grad():
        y, hidden, cells = flat(fast(torch.randn(3, 2, 16)))
        kept = cells.clone()
        y.fill_(7)
        hidden.fill_(8)
    assert torch.equal(cells, kept)
    assert (y == 7).all()


@pytest.mark.parametrize("settings", LAYERS.values(), ids=LAYERS)
def test_layers_of_many_steps_need_no_constants(settings, texts) -> None:
    """Weights are packed in each call: changed ones are seen at once."""
    torch.manual_seed(0)
    model = nn.LSTM(24, 48, **settings).eval()
    fast = tracer_core.compile(model, fullgraph=True)
    sequence = (3, 11, 24) if settings.get("batch_first") else (11, 3, 24)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(sequence)
            assert_as_accurate_as_eager(fast(x), model, x, floor=3e-7)
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) / 10)
        few = torch.randn([min(size, 3) for size in sequence[:2]] + [24])
        assert_as_accurate_as_eager(fast(few), model, few, floor=3e-7)
    if 48 % lanes() == 0:
        assert "run_lstm(" in texts[0]
        assert "mkldnn_rnn_layer" not in texts[0]
        assert "run_lstm(" not in texts[-1]
        assert "mkldnn_rnn_layer" in texts[-1]


def test_layers_that_train_are_atens() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(16, 32)
    fast = tracer_core.compile(model, fullgraph=True)
    x = torch.randn(12, 2, 16)
    fast(x)[0].square().sum().backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x)[0].square().sum().backward()
    for item, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(item, parameter.grad, rtol=1e-4, atol=1e-4)


def test_other_layers_stay_atens(texts) -> None:
    """Packed sequences, units that do not fill vectors, other dtypes."""
    torch.manual_seed(0)
    x = torch.randn(4, 2, 16)
    for model, given in (
        (nn.LSTM(16, 20), x),
        (nn.LSTM(16, 32).double(), x.double()),
        (nn.GRU(16, 32), x),
    ):
        fast = tracer_core.compile(model.eval(), options=FREEZE, fullgraph=True)
        with torch.no_grad():
            assert torch.allclose(fast(given)[0], model(given)[0], atol=1e-6)
    assert not any("run_lstm(" in text for text in texts)
