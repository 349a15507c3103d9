"""Every backend conforms: a seeded sample of the table in CI, all of it with ``-m slow`` and in
docs/conformance/.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import cudagraphs_backend
import tracer_core
from tests.conformance import simulated_cudagraphs
from tests.cudagraphs.simulated import HAZARDS
from tracer_core.registry.discovery import get
from tracer_core.testing.conformance import PROGRAMS, bad, conformance, everything, table

PAGES = Path(__file__).resolve().parents[2] / "docs" / "conformance"

#: Sampled graphs in CI, and the share of those in float32 that the backend must run whole. onnxrt:
#: 7 of its 13; extremes, sorts and quotients, which ONNX Runtime computes otherwise for NaN and
#: near integers, run eagerly.
SAMPLES = {
    "aten_eager": (60, 1.0),
    "inductor": (24, 0.95),
    "cudagraphs": (60, 0.9),
    "onnxrt": (40, 0.53),
    "tvm": (10, 0.5),
}


@pytest.fixture
def tried(request):
    """The backend of a name; cudagraphs on its simulated device."""
    name = request.param
    pytest.importorskip({"onnxrt": "onnxruntime", "tvm": "tvm"}.get(name, "torch"))
    tracer_core.reset()
    if name != "cudagraphs":
        yield get(name)
        return
    cudagraphs_backend.reset()
    HAZARDS.clear()
    backend, undo = simulated_cudagraphs.installed()
    yield backend
    tracer_core.reset()
    cudagraphs_backend.reset()
    undo()
    assert HAZARDS == []


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("tried", SAMPLES, indirect=True)
def test_a_sample_of_graphs(tried):
    size, least = SAMPLES[tried.name]
    rows = conformance(tried, sample=size, seed=7)
    assert not bad(rows), table(bad(rows))
    floats = [row.status for row in rows if row.dtype is torch.float32]
    assert floats.count("ok") >= least * len(floats), table(rows)


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("tried", SAMPLES, indirect=True)
def test_programs(tried):
    rows = conformance(tried, cases=(), programs=PROGRAMS)
    assert not bad(rows), table(bad(rows))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("tried", SAMPLES, indirect=True)
def test_everything(tried):
    rows = everything(tried)
    assert not bad(rows), table(bad(rows))


@pytest.mark.parametrize("name", ["inductor", "cudagraphs", "onnxrt", "tvm", "aten_eager"])
def test_the_page_is_there_and_shows_no_fault(name):
    page = (PAGES / f"{name}.md").read_text()
    (summary,) = re.findall(r"^(\d+) rows: (.*)\.$", page, re.MULTILINE)
    assert int(summary[0]) > 150 and "wrong" not in summary[1] and "error" not in summary[1]
    assert "## Programs" in page and "eight threads on one compiled model" in page
