"""The backend onnxrt: what is its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.aten.programs import randn
from tests.engines.running import compiled
from tracer_core.dispatch import fallback_of
from tracer_core.errors import BackendError, OptionError
from tracer_core.validation import build_config

pytest.importorskip("onnxruntime")


def test_symbolic_sizes_make_one_model(monkeypatch):
    from onnxrt_backend import session

    made = []
    real = session.session
    monkeypatch.setattr(session, "session", lambda *args: made.append(1) or real(*args))
    runner, extra = compiled("onnxrt", lambda x: x.relu() + 1, randn(4, 6), dynamic=True)
    for rows in (4, 2, 7):
        runner([randn(rows, 6), *extra])
    assert len(made) == 1


def test_options():
    runner, _ = compiled("onnxrt", lambda x: x + 1, randn(3), intra_op_threads=1, graph_optimization_level="disable")
    torch.testing.assert_close(runner([torch.ones(3)])[0], torch.full((3,), 2.0))
    with pytest.raises(OptionError, match="intra_op_threads"):
        build_config(backend="onnxrt", options={"threads": 1})
    with pytest.raises(BackendError, match="NoSuchProvider is not in this onnxruntime, which has"):
        build_config(backend="onnxrt", options={"providers": ("NoSuchProvider",)})


def test_an_operator_that_onnx_runtime_lacks_is_named():
    runner, _ = compiled("onnxrt", lambda x: F.gelu(x) + 1, randn(3).double())
    assert "aten.gelu.default (1x: ONNX Runtime refuses it" in fallback_of(runner).reason
    torch.testing.assert_close(runner([torch.ones(3).double()])[0], F.gelu(torch.ones(3).double()) + 1)
