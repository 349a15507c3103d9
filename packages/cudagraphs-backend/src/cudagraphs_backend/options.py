"""The backend's options, as users give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

#: Which results of a CUDA graph are copied. ``"auto"``: small ones; large ones stay in the graph's
#: memory, which is not overwritten while they are alive. ``"saved"``: all that the program sees; what
#: only the backward reads stays (needed where results are used on other streams under
#: `record_stream`). ``"copy"``: all.
Outputs = Literal["auto", "saved", "copy"]
OUTPUTS = get_args(Outputs)


@dataclass(frozen=True, slots=True)
class CudaGraphsOptions:
    """Options of ``backend="cudagraphs"``.

    Raises:
        ValueError: A value is outside of its range.
    """

    #: Which results of a CUDA graph are copied.
    outputs: Outputs = "auto"
    #: How many CUDA graphs of one graph and size may have large results alive at once; beyond that,
    #: results are copied.
    copies: int = 2
    #: How many eager runs of a size precede its capture.
    warmup: int = 1
    #: Captures a size only where it pays (`cudagraphs_backend.policy`): timed eager runs are
    #: CPU-bound, memory is not short, and of symbolic sizes those that are called often.
    measured: bool = False
    #: The most CUDA graphs of a device; beyond that, the least recently used is dropped.
    recordings: int = 256
    #: The most memory that the CUDA graphs of a device may hold, in MiB. None: a third of the
    #: device's.
    memory_mib: int | None = None
    #: For training, the part (0 to 1) of the activations' bytes that may be saved for the backward.
    memory_budget: float = 1.0

    def __post_init__(self) -> None:
        if self.outputs not in OUTPUTS:
            raise ValueError(f"outputs={self.outputs!r}: one of {', '.join(map(repr, OUTPUTS))}")
        for name, least in (("copies", 0), ("warmup", 1), ("recordings", 1), ("memory_mib", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value!r}: at least {least}")
        if not 0 <= self.memory_budget <= 1:
            raise ValueError(f"memory_budget={self.memory_budget!r}: from 0 to 1")
