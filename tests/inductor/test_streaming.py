"""Results past the caches leave through blocks and non-temporal stores: same values at every size
and alignment.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import tracer_core
from inductor_backend.codegen.cpp import streaming

SIZES = [(5, 1300), (3, 257), (2, 1024), (64, 300), (7, 4099)]

PROGRAMS = {
    "add": lambda x: x + 1.5,
    "two results": lambda x: (x.relu(), x > 0),
    "bfloat16": lambda x: (x * 2).to(torch.bfloat16),
    "float64": lambda x: x.double() + 1,
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "result and its sum": lambda x: (x.exp(), x.exp().sum(1)),
    "into a part": lambda x: torch.cat([x, x + 1], 1) * 2,
    "misaligned": lambda x: F.pad(x, (1, 2)) + 1,
    "transposed result": lambda x: x.t() + 1,
}


@pytest.fixture
def everything_streams(monkeypatch):
    monkeypatch.setattr(streaming, "STREAMED", 0)


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("everything_streams")
def test_values_are_those_of_ordinary_stores(name):
    function = PROGRAMS[name]
    compiled = tracer_core.compile(function, dynamic=True)
    for size in SIZES:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.usefixtures("everything_streams")
def test_inputs_that_are_written_to():
    def function(x, out):
        out.copy_(x.sin())
        return x * 2

    compiled = tracer_core.compile(function, dynamic=True)
    for size in SIZES:
        x = torch.randn(size)
        ours, eager = torch.zeros(size), torch.zeros(size)
        torch.testing.assert_close(compiled(x, ours), function(x, eager))
        torch.testing.assert_close(ours, eager)


def test_threads_see_each_others_results():
    x, w = torch.randn(8192, 1024), torch.randn(1024, 4)  # 32 MiB: past the caches by itself
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        compiled = tracer_core.compile(lambda x: (x + 1) @ w)
        torch.testing.assert_close(compiled(x), (x + 1) @ w, rtol=1e-4, atol=1e-3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "streams"), [(6144, True), (64, False)])
def test_only_what_is_past_the_caches_streams(rows, streams, written_sources):
    x = torch.randn(rows, 1024)
    torch.testing.assert_close(tracer_core.compile(lambda x: x.relu() + 1)(x), x.relu() + 1)
    assert any("tc_stream(" in source for source in written_sources) is streams


@pytest.fixture
def written_sources(monkeypatch):
    """The C++ texts that are built."""
    from inductor_backend.runtime import generated_support

    seen: list[str] = []
    build = generated_support.build
    monkeypatch.setattr(
        generated_support,
        "build",
        lambda sources, *, name: seen.extend(sources) or build(sources, name=name),
    )
    return seen
