"""The backend's options, as users give them."""

from __future__ import annotations

from dataclasses import dataclass

OUTPUTS = ("auto", "saved", "copy")


@dataclass(frozen=True, slots=True)
class CudaGraphsOptions:
    """outputs: ``"auto"``: small results are copied out of a CUDA graph, large ones stay in its
    memory, which is not overwritten while they live; ``"saved"``: only what the backward reads
    stays, and what the program sees is copied out (needed where results are used on other streams
    under `record_stream`); ``"copy"``: every result is copied. measured: a size is captured only if
    timed plain runs are CPU-bound and memory is not short. copies: CUDA graphs of one graph and
    size whose large results may be alive at once; after that results are copied out. warmup: plain
    runs of a size before its capture. recordings: the most CUDA graphs of a device; the least
    recently used is thrown away. memory_mib: the most memory that the CUDA graphs of a device may
    hold, in MiB (None: a third of the device's). memory_budget: for training, the part (0 to 1) of
    the activations' bytes that is kept from the forward to the backward.

    Raises ValueError for a value outside these ranges."""

    outputs: str = "auto"
    copies: int = 2
    warmup: int = 1
    measured: bool = False
    recordings: int = 256
    memory_mib: int | None = None
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
