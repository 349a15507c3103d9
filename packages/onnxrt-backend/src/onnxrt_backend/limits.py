"""The limits of the backend `onnxrt`."""

from __future__ import annotations

from tracer_core.plugin_api import LimitTable

LIMITS = LimitTable("onnxrt_backend")

MAX_POOLED_ELEMENTS = LIMITS.add(
    "MAX_POOLED_ELEMENTS",
    1024,
    unit="elements of an image that a mean averages",
    beyond="The mean stays a ReduceMean in place of an AveragePool.",
    seen="the model (`TRACER_DEBUG`)",
)
