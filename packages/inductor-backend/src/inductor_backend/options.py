"""Defines the backend's options, as users give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

#: How 16-bit floats round inside a kernel. ``"fused"``: only where a discontinuous operation reads
#: them (rounding, comparison, conversion to integers, the index of an extreme) and where float16
#: overflows. ``"eager"``: after every operator.
Numerics = Literal["fused", "eager"]


@dataclass(frozen=True, slots=True)
class InductorOptions:
    """Options of ``backend="inductor"``. Each is a part of the cache key.

    Raises:
        ValueError: The budget is outside of 0 to 1, or `numerics` is unknown.
    """

    #: Fuses operators into kernels. False: one kernel per operator, to find a wrong fusion.
    fuse: bool = True
    #: Computes cheap or single-use results inside their readers.
    inline: bool = True
    #: For training, the part (0 to 1) of the activations' bytes that may be saved for the backward;
    #: the rest is recomputed. At 1, only what costs next to nothing is recomputed.
    memory_budget: float = 1.0
    #: Makes parameters and buffers constants in inference: what depends on them alone is computed
    #: once, batch norms are folded into convolutions, weights are packed (copies: memory for
    #: speed). A parameter that is replaced, or written to by an operator, is prepared again at the
    #: next call; writes through ``.data``, NumPy or shared memory are not seen: call
    #: ``fast.refresh()`` after them.
    freeze: bool = False
    #: Captures CUDA graphs (cudagraphs-backend) in the default mode where timed calls show that it
    #: pays. False: never; an error with the modes that capture every graph.
    recordings: bool = True
    #: Measures block sizes of GPU kernels that move `limits.MIN_SEARCHED_BYTES` while the program runs
    #: (modes "default" and "reduce-overhead"), and stores the fastest for later processes. A kernel
    #: that adds may then round otherwise than in the calls before; under
    #: ``torch.use_deterministic_algorithms`` and in process groups such kernels are left alone.
    tile_search: bool = True
    #: Makes dropout inside GPU kernels draw eager's numbers, bit for bit, and leave torch's
    #: generator as eager does. Without it a kernel computes them from the seed and the element's
    #: index, anew for each call. On the CPU numbers are always eager's.
    fallback_random: bool = False
    #: How 16-bit floats round inside a kernel.
    numerics: Numerics = "fused"

    def __post_init__(self) -> None:
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget={self.memory_budget!r}: from 0 to 1")
        if self.numerics not in get_args(Numerics):
            raise ValueError(f"numerics={self.numerics!r}: 'fused' or 'eager'")
