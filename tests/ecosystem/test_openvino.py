"""OpenVINO's own backend for torch.compile, through ours: ``compile(m, backend="openvino")``."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tracer_core import settings
from tracer_core.errors import OptionError

pytest.importorskip("openvino")

#: What OpenVINO computes in is the processor's affair (bfloat16 where it has it) unless it is told.
EXACT = {"config": {"INFERENCE_PRECISION_HINT": "f32"}}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.head(x.mean((2, 3))).softmax(-1)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net().eval()


def everything_global():
    """What a library may change of torch by being imported or used."""
    return {
        **{name: str(value) for name, value in settings.snapshot().items()},
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default device": str(torch.get_default_device()),
        "rng": torch.get_rng_state().sum().item(),
    }


def test_it_is_listed_and_runs_a_model_right(net):
    assert "openvino" in tracer_core.list_backends()
    row = next(row for row in tracer_core.backends() if row.name == "openvino")
    assert row.distribution == "openvino" and row.version
    before = everything_global()
    fast = tracer_core.compile(net, backend="openvino", options=EXACT, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 16, 16)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
            before["rng"] = torch.get_rng_state().sum().item()
    assert everything_global() == before


def test_the_engine_runs_it_and_not_torchs_compiler(net, monkeypatch):
    """On any failure OpenVINO's backend hands the graph to torch's own compiler without a word."""
    from openvino.frontend.pytorch.torchdynamo import backend as theirs
    from openvino.frontend.pytorch.torchdynamo import execute

    def forbidden(*args, **kwargs):
        raise AssertionError("handed on to torch's compiler")

    models = []
    real = execute.openvino_compile
    monkeypatch.setattr(execute, "openvino_compile", lambda *a, **k: models.append(real(*a, **k)) or models[-1])
    monkeypatch.setattr(theirs, "compile_fx", forbidden)
    fast = tracer_core.compile(net, backend="openvino", options=EXACT)
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(models) == 1  # the whole graph is one model of the engine


def test_sizes_that_change(net):
    fast = tracer_core.compile(net, backend="openvino", options=EXACT)
    with torch.no_grad():
        for batch in (2, 3, 5, 1):
            x = torch.randn(batch, 3, 16, 16)
            torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)


def test_new_values_of_parameters_are_seen(net):
    """Parameters are inputs of the graphs that we hand out."""
    model = copy.deepcopy(net)
    fast = tracer_core.compile(model, backend="openvino", options=EXACT)
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        model.head.weight.mul_(3)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_as_one_of_several(net, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    fast = tracer_core.compile(net, backend=[("openvino", EXACT), "onnxrt"], options={"wait": True})
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    (choice,) = fast.choices()
    row = next(row for row in choice.rows if row.name.startswith("openvino"))
    assert row.error is not None and row.error < 1e-4, str(choice)


def test_mistakes():
    with pytest.raises(OptionError, match="'openvino' takes no mode"):
        tracer_core.compile(lambda x: x, backend="openvino", mode="max-autotune")


def test_listing_does_not_import_it():
    program = "import sys, tracer_core; tracer_core.backends(); print('openvino' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stdout + done.stderr
