"""CPU-bound check: a CUDA graph pays only where the host, not the device, limits a graph's speed.

`CpuBoundCheck` asks for timed plain runs until it can decide. Nothing waits for the device: a run that the
device has not finished when `against` reads its timing counts as device-bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

#: Timed runs; the majority decides.
RUNS = 3

#: Host seconds below which a plain call is no slower than a replay (decision 0011: 20 to 40
#: microseconds).
SHORT = 60e-6

#: A run is CPU-bound if the host takes at least this part of the time between the events round it.
HOST_PART = 0.75

#: The same of a graph with collectives, whose device also waits for slower ranks.
HOST_PART_OF_RANKS = 0.5


@dataclass(frozen=True, slots=True)
class Timing:
    """host: seconds that one run took on the host. device: returns the seconds between the events
    before and after the run, None where the device has not finished it."""

    host: float
    device: Callable[[], float | None]


class Verdicts(Protocol):
    """What an earlier process found, by size. known: a verdict, or None. keep: for later ones."""

    def known(self, size: str) -> str | None: ...

    def keep(self, size: str, verdict: str) -> None: ...


@dataclass(slots=True)
class CpuBoundCheck:
    """Mutable: the timed runs of one size."""

    #: The graph has collectives.
    communicates: bool = False
    #: Gets the verdict.
    kept: Callable[[str], None] | None = None
    timings: list[Timing] = field(default_factory=list)
    verdict: str | None = None

    @property
    def wanted(self) -> bool:
        """Returns whether another run should be timed."""
        return len(self.timings) < RUNS and self.verdict is None

    def add(self, timing: Timing) -> None:
        self.timings.append(timing)

    @property
    def decided(self) -> bool:
        return self.verdict is not None

    def against(self) -> str | None:
        """Returns why a CUDA graph does not pay; None where it does, or where that is undecided."""
        if self.verdict is None and len(self.timings) >= RUNS:
            self.verdict = self._judged()
            self.timings.clear()
            if self.kept is not None:
                self.kept(self.verdict)
        return self.verdict or None

    def _judged(self) -> str:
        host = min(timing.host for timing in self.timings)
        if host < SHORT:
            return f"a plain call takes the host {host * 1e6:.0f} microseconds, a replay no fewer"
        part = HOST_PART_OF_RANKS if self.communicates else HOST_PART
        votes = 0
        for timing in self.timings:
            device = timing.device()
            votes += device is not None and timing.host >= part * device
        return "" if 2 * votes > len(self.timings) else "the device sets its pace, not the host"
