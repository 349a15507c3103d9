"""The backend's options, as users give them."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InductorOptions:
    """fuse: put several operators into one kernel (False: one kernel an operator, to find a wrong fusion).
    inline: compute cheap or single-use results inside their readers. All fields change the generated
    code, so all are part of the cache key."""

    fuse: bool = True
    inline: bool = True


def fusion_fuel() -> int | None:
    """TRACER_FUEL: how many fusions are allowed (unset: all), to bisect a wrong result."""
    text = os.environ.get("TRACER_FUEL", "")
    return int(text) if text else None
