"""Defines the backend's options, as users give them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

#: Modes that capture every graph on a CUDA device, whether or not capturing pays.
RECORDED_MODES = frozenset({"reduce-overhead", "max-autotune"})


@dataclass(frozen=True, slots=True)
class InductorOptions:
    """fuse: put several operators into one kernel (False: one kernel an operator, to find a wrong
    fusion). inline: compute cheap or single-use results inside their readers. memory_budget: for
    training, the part (0 to 1) of the activations' bytes that may be kept from the forward to the
    backward; what is not kept is computed again (at 1 only what costs next to nothing is). freeze:
    in inference, parameters and buffers are constants: what depends on them alone is computed once,
    batch norms go into convolutions, weights are packed (copies: memory for speed). A parameter
    that is replaced, or written to by an operator, is prepared again at the next call; writes
    through ``.data``, NumPy or shared memory cannot be seen: call ``fast.refresh()`` after them.
    fallback_random: random numbers are eager's own, bit for bit, and leave torch's generator as
    eager does. On the CPU they are so in both modes; on a GPU dropout draws other numbers inside
    its kernels unless this is True (from torch's generator and the elements' places: a seed gives
    them again, each call has its own). numerics: "fused": inside a kernel 16-bit floats have more
    bits than eager's results, but where these show: what a discontinuous operation reads (rounding,
    comparison, conversion to integers, the place of an extreme) is what eager computes, and float16
    overflows where eager's does; "eager": the result of every 16-bit operator is rounded.
    recordings: on CUDA devices the default mode records a graph (cudagraphs-backend) where timed
    calls show that it pays; False: never (an error with the modes that record every graph). All
    fields change the generated code, so all are part of the cache key. Raises ValueError for a
    budget outside 0 to 1 or other numerics."""

    fuse: bool = True
    inline: bool = True
    memory_budget: float = 1.0
    freeze: bool = False
    recordings: bool = True
    fallback_random: bool = False
    numerics: Literal["fused", "eager"] = "fused"

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget={self.memory_budget!r}: from 0 to 1")
        if self.numerics not in ("fused", "eager"):
            raise ValueError(f"numerics={self.numerics!r}: 'fused' or 'eager'")


def fusion_fuel() -> int | None:
    """TRACER_FUEL: how many fusions are allowed (unset: all), to bisect a wrong result."""
    text = os.environ.get("TRACER_FUEL", "")
    return int(text) if text else None
