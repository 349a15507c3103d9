"""Recompiles have the value that the newest entry was captured with and the present one, whatever kind
of guard failed: reports and messages show both."""

from __future__ import annotations

import types

import torch

import tracer_core
from tracer_core.testing import compare


def test_every_recompile_has_the_value_before_and_now():
    config = {"scale": 2.0}
    settings = types.SimpleNamespace(scale=2.0)

    def program(x):
        x = x * config["scale"] + config.get("bias", 0.0)
        return x * settings.scale if hasattr(settings, "scale") else x

    fast = tracer_core.compile(program, backend="eager", dynamic=True)
    x = torch.ones(4, 3)
    fast(x)
    config["bias"] = 1.0
    fast(x)
    del settings.scale
    fast(x)
    fast(torch.ones(1, 3))
    with torch.no_grad():
        fast(torch.ones(1, 3))
    compare(program(x), fast(x))
    (function,) = tracer_core.report(fast).data["functions"]
    values = [(row["source"], row["seen"], row["now"]) for row in function["recompiles"]]
    assert values == [
        ("config.bias", "missing", "1.0"),
        ("settings.scale", "2.0", "KeyError: 'scale'"),
        (
            "x",
            "x.shape[0] >= 2",
            "a torch.float32 tensor of shape (1, 3), stride (3, 1)",
        ),
        ("torch's is_grad_enabled()", "True", "False"),
    ]
    assert "but config.bias is 1.0" in function["recompiles"][0]["reason"]
    assert "but x is a torch.float32 tensor" in function["recompiles"][2]["reason"]
