"""DistributedDataParallel: losses, gradients, parameters and buffers are eager's, on every rank."""

from __future__ import annotations

import pytest

MODELS = ("mlp", "convnet", "bert")
#: Each end of DistributedDataParallel's own forward.
AROUND = ["processes", "processes"]

SETTINGS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "no_buffers": {"broadcast_buffers": False},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_around_a_compiled_model(pair, model, settings):
    for seen in pair.run("ddp:inside", name=model, **SETTINGS[settings]):
        assert seen == {"graphs": 1, "breaks": [], "recompiles": 0}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("model", MODELS)
def test_compiled(pair, model, settings):
    for seen in pair.run("ddp:outside", name=model, **SETTINGS[settings]):
        assert seen == {"graphs": 1, "breaks": AROUND, "recompiles": 0}
