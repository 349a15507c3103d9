"""freeze=True: which matmuls of one input become one matmul."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.kernels import native


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("tokens", [1023, 1024])
def test_matmuls_of_many_rows_stay_apart_where_that_is_faster(
    tokens, tiles, texts, monkeypatch
) -> None:
    monkeypatch.setattr(native, "multiplies_in_tiles", lambda: tiles)
    monkeypatch.setattr(native, "lanes", lambda: 8)
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def heads(x):
        return [layer(x).relu() for layer in layers]

    x = torch.randn(tokens, 64)
    with torch.no_grad():
        actual = tracer_core.compile(heads, options={"freeze": True}, fullgraph=True)(x)
        for result, wanted in zip(actual, heads(x), strict=True):
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    (text,) = texts
    matmuls = text.count(" run_blocked(") + text.count(" run_packed(")
    assert matmuls == (3 if tokens == 1024 and not tiles else 1)
