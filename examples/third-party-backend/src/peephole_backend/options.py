"""What users can set: ``compile(model, backend="peephole", options={...})``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeepholeOptions:
    """Options of ``backend="peephole"``. Raises ValueError for a negative `max_fusions`."""

    #: Fuses operators.
    fuse: bool = True
    #: Fuses only the first so many places of each graph (None: all), to find by bisection which one
    #: changes a result.
    max_fusions: int | None = None

    def __post_init__(self) -> None:
        if self.max_fusions is not None and self.max_fusions < 0:
            raise ValueError(f"max_fusions must not be negative, but is {self.max_fusions}")
