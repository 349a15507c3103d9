"""Batch norms whose momentum differs between calls: 1 / n of the cumulative average
(``momentum=None``), or what a program sets.

The kernel takes a constant. A polyfill updates the running statistics where the number is symbolic.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import special
from tracer_core.torch_private.names import name, names
from tracer_core.trace.tracer import Tracer


@special(*names("nn.functional.batch_norm"))
def batch_norm(
    tracer: Tracer,
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: Any = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
) -> Any:
    if training is True and isinstance(momentum, torch.SymFloat):
        statistics = [tracer.recorder.as_fake(value) for value in (running_mean, running_var)
                      if isinstance(value, torch.Tensor)]  # fmt: skip
        channels = tracer.recorder.as_fake(input).shape[1]
        if len(statistics) == 2 and all(tuple(item.shape) == (channels,) for item in statistics):
            inputs = [input, running_mean, running_var, weight, bias, momentum, eps]
            return tracer.calls.prepare(polyfills.batch_norm, inputs, {})
    inputs = [input, running_mean, running_var, weight, bias, training, momentum, eps]
    return tracer.native_calls.call_torch(name("nn.functional.batch_norm"), inputs, {})
