"""Hugging Face accelerate and the Trainer on it, on one process and on two: eager's results, one
graph.
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sweep(keep=2)

#: prepare() puts DistributedDataParallel around the model, so what is compiled before lies inside.
BREAKS = {"before": [], "after": ["processes", "processes"]}
SETTINGS = {
    "plain": {"name": "mlp"},
    "autocast": {"name": "bert", "mixed_precision": "bf16"},
    "accumulated": {"name": "convnet", "gradient_accumulation_steps": 2},
}


@pytest.fixture(params=["alone", "pair"])
def processes(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("when", BREAKS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_prepare(processes, settings, when):
    breaks = BREAKS[when] if processes.ranks > 1 else []
    for seen in processes.run("accelerated:trained", when=when, **SETTINGS[settings]):
        assert seen == {"graphs": 1, "breaks": breaks, "recompiles": 0}


@pytest.mark.parametrize("when", BREAKS)
def test_unwrap_save_and_load(processes, when):
    processes.run("accelerated:unwrapped", when=when)


def test_trainer(processes):
    """The model itself changes its configuration in its first call (problem_type), which is a
    second graph.
    """
    for seen in processes.run("accelerated:trainer"):
        assert seen == {"graphs": 2, "breaks": [], "recompiles": 1}
