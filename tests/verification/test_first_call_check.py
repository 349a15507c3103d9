"""``compile(verify=)``: the first call of each graph beside eager mode, and what a difference does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.execution.store import persistent_cache


def wrong(gm, inputs):
    """A backend whose results are a tenth too large."""
    return lambda *args: tuple(item * 1.1 for item in gm.forward(*args))


def verified(fast) -> list[str]:
    return [row.text for row in tracer_core.last_compile(fast) if row.name == "verified"]


@pytest.mark.parametrize(
    ("verify", "warns", "later"), [("report", 0, 1.1), ("warn", 1, 1.1), ("fallback", 1, 1.0)]
)
def test_a_wrong_backend(verify, warns, later, caplog):
    fast = tracer_core.compile(lambda x: x.exp(), backend=wrong, verify=verify)
    x = torch.rand(5)
    assert torch.equal(fast(x), x.exp()), "eager mode serves the first call"
    for _ in range(2):
        assert torch.allclose(fast(x), x.exp() * later)
    (text,) = verified(fast)
    assert text.startswith("DIFFERENT from eager mode: result 0: relative error 1.0e-01"), text
    assert ("runs in eager mode from now on" in text) is (verify == "fallback")
    assert sum("DIFFERENT" in record.getMessage() for record in caplog.records) == warns


def test_a_right_backend_with_gradients_random_numbers_and_buffers(caplog):
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    other.load_state_dict(net.state_dict())
    fast, x = tracer_core.compile(net, verify="fallback"), torch.randn(8, 4)
    for step in range(3):
        results = []
        for module in (fast, other):
            torch.manual_seed(step)
            module(x).square().sum().backward()
            results.append([p.grad.clone() for p in module.parameters()] + [*module.buffers()])
            module.zero_grad()
        for got, expected in zip(*results, strict=True):
            assert torch.allclose(got, expected, atol=1e-4)
    assert all("eager mode's results" in text for text in verified(fast)) and verified(fast)
    assert not [record for record in caplog.records if "DIFFERENT" in record.getMessage()]


def test_each_graph_is_compared_and_writes_happen_once():
    def program(x):
        x.add_(1)
        tracer_core.graph_break()
        return x * 2

    fast, x = tracer_core.compile(program, verify="warn"), torch.zeros(3)
    assert fast(x).tolist() == [2, 2, 2] and x.tolist() == [1, 1, 1]
    assert len(verified(fast)) >= 1
    assert fast(x).tolist() == [4, 4, 4] and x.tolist() == [2, 2, 2]


def test_a_graph_that_cannot_run_twice_says_so():
    def program(x, generator):
        return x + torch.rand(3, generator=generator)

    fast, x = tracer_core.compile(program, backend="eager", verify="warn"), torch.zeros(3)
    results = [f(x, torch.Generator().manual_seed(3)) for f in (fast, fast, program)]
    assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[2])


def test_an_error_of_the_program_is_the_program_s():
    fast = tracer_core.compile(lambda x, i: x[i], backend="eager", verify="warn")
    with pytest.raises(IndexError):
        fast(torch.zeros(3), torch.tensor([7]))
    assert fast(torch.arange(3.0), torch.tensor([2])).tolist() == [2.0]


@pytest.mark.parametrize("verify", [None, "report"])
def test_nothing_is_stored(verify, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRACER_KEEP", "1")
    fast = tracer_core.compile(lambda x: x.exp() * 3, verify=verify)
    fast(torch.rand(5))
    persistent_cache.flush()
    stored = tracer_core.cache.info().entries.get("persistent_cache", (0, 0))[0]
    assert (stored > 0) is (verify is None), tracer_core.last_compile(fast).table()
