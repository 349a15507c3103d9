"""torch.nn.attention.bias: attention under a causal bias."""

from __future__ import annotations

from typing import Any

from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import special_each_of
from tracer_core.trace.tracer import Tracer


@special_each_of("torch.nn.attention.bias", "CausalBias._dispatch")
def dispatch(tracer: Tracer, function: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    """Leaves out, on the CPU, the question which of the GPU's kernels takes the call: none does."""
    if tracer.recorder.as_fake(query).device.type == "cpu":
        return tracer.calls.prepare(polyfills.attention_by_bias, [query, *args], kwargs)
    return tracer.calls.frame_of(function, [query, *args], kwargs)
