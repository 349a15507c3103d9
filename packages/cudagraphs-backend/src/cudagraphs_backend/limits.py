"""The limits of the backend `cudagraphs`: what is captured as a CUDA graph, what is copied into and out
of one, and when capture is given up.
"""

from __future__ import annotations

from tracer_core.plugin_api import LimitTable

LIMITS = LimitTable("cudagraphs_backend")

_STAGE = "the stage `cudagraphs_record` (`TRACER_DEBUG`, `TRACER_LOGS=stages`)"

MAX_COPIED_BYTES_PER_OPERATOR = LIMITS.add(
    "MAX_COPIED_BYTES_PER_OPERATOR",
    256 * 1024,
    unit="bytes of results for each operator of the graph",
    beyond="Results stay in the memory of the CUDA graph in place of being copied.",
    seen=_STAGE,
    changed='TRACER_LIMITS; `options={"outputs": ...}`',
)
MAX_COPIED_BYTES = LIMITS.add(
    "MAX_COPIED_BYTES",
    64 * 2**20,
    unit="bytes of results, or of moving inputs, of one graph",
    beyond="Results stay in the memory of the CUDA graph; moving inputs are not copied.",
    seen=_STAGE,
    changed='TRACER_LIMITS; `options={"outputs": ...}`',
)
MAX_COPIED_RESULTS = LIMITS.add(
    "MAX_COPIED_RESULTS",
    16,
    unit="results of one graph",
    beyond="Small results are handed out as aliases in place of copies.",
    seen=_STAGE,
    changed='TRACER_LIMITS; `options={"outputs": ...}`',
)
MAX_COPIED_PART = LIMITS.add(
    "MAX_COPIED_PART",
    0.125,
    unit="parts of a forward's saved bytes",
    beyond="Saved activations that move are not copied; the backward waits until their addresses return.",
    seen="`explain`",
)
MAX_ADDRESSES = LIMITS.add(
    "MAX_ADDRESSES",
    4,
    unit="sets of input addresses of one size",
    beyond="Addresses that keep changing are copied, or the size runs without a CUDA graph.",
    seen="`explain`",
)
MIN_REPLAYS_OF_CAPTURE = LIMITS.add(
    "MIN_REPLAYS_OF_CAPTURE",
    32,
    unit="replays for each capture",
    beyond="With fewer, inputs that moved have to come back before another capture.",
    seen="`explain`",
)
MAX_UNPAID_CALLS = LIMITS.add(
    "MAX_UNPAID_CALLS",
    32,
    unit="plain calls of a size that was to be captured",
    beyond="The size runs without a CUDA graph from then on, if it had fewer replays.",
    seen="`explain`",
)
MAX_DEVICE_BOUND_CALLS = LIMITS.add(
    "MAX_DEVICE_BOUND_CALLS",
    256,
    unit="plain calls of a size whose pace the device seemed to set",
    beyond="The size is timed again, once: other work may have used the device the first time.",
    seen="`explain`",
)
MAX_REMEMBERED_SIZES = LIMITS.add(
    "MAX_REMEMBERED_SIZES",
    1024,
    unit="sizes of one graph",
    beyond="The size that was used first is forgotten with its CUDA graphs.",
    seen="a warning in the log, `explain`",
)
MAX_MEASURED_SIZES = LIMITS.add(
    "MAX_MEASURED_SIZES",
    8,
    unit="sizes of one graph with CUDA graphs that no option asked for",
    beyond="Further sizes run without CUDA graphs.",
    seen="`explain`",
)
MAX_MEASURED_COPIES = LIMITS.add(
    "MAX_MEASURED_COPIES",
    512 * 2**20,
    unit="bytes of results copied in each call, where no option asked for CUDA graphs",
    beyond="The size runs without a CUDA graph.",
    seen="`explain`",
)
MIN_FREE_MEMORY = LIMITS.add(
    "MIN_FREE_MEMORY",
    0.25,
    unit="parts of the device's memory that are free",
    beyond="With less, nothing is captured that no option asked for.",
    seen="`explain`",
)
MAX_CAPTURE_FAILURES = LIMITS.add(
    "MAX_CAPTURE_FAILURES",
    4,
    unit="reasons against capturing the sizes of one graph",
    beyond="No size of the graph is captured any more.",
    seen="`explain`",
)
MIN_GRAPH_LAUNCHES = LIMITS.add(
    "MIN_GRAPH_LAUNCHES",
    6,
    unit="launches of a graph on a GPU",
    beyond="With fewer, the graph runs without CUDA graphs.",
    seen="`explain`",
    changed='TRACER_LIMITS; `mode="reduce-overhead"` has no such limit',
)
MIN_CALLS_OF_A_SIZE = LIMITS.add(
    "MIN_CALLS_OF_A_SIZE",
    12,
    unit="calls with one symbolic size on a GPU",
    beyond="With fewer, the size runs without CUDA graphs.",
    seen="`explain`",
    changed='TRACER_LIMITS; `mode="reduce-overhead"` has no such limit',
)
