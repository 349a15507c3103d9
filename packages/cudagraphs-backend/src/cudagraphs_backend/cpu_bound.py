"""Whether the host or the device sets the pace of a graph: only where it is the host does a
recording pay.

In: timed plain runs. Out: `Pace`, which asks for runs until it can tell. What always holds: nothing
waits for the device; a run whose end the device has not reached when the next call comes counts as
one that the device slows down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: Runs that are timed; more than half of them decide.
RUNS = 3

#: A call that takes the host less than this is no slower than a replay (decision 0011: 20 to 40
#: microseconds).
SHORT = 60e-6

#: The host sets the pace where it takes at least this part of the time between first and last
#: launch on the device.
HOST_PART = 0.75


@dataclass(frozen=True, slots=True)
class Timing:
    """host: seconds that one run took the host. device: seconds from its first to its last launch
    on the device, None where the device is not done with it."""

    host: float
    device: Callable[[], float | None]


@dataclass(slots=True)
class Pace:
    """Mutable: the timed runs of one size."""

    timings: list[Timing] = field(default_factory=list)
    verdict: str | None = None

    @property
    def wanted(self) -> bool:
        """Whether another run should be timed."""
        return len(self.timings) < RUNS and self.verdict is None

    def add(self, timing: Timing) -> None:
        self.timings.append(timing)

    @property
    def decided(self) -> bool:
        return self.verdict is not None

    def against(self) -> str | None:
        """Why a recording does not pay; None where it does, or where that is not decided."""
        if self.verdict is None and len(self.timings) >= RUNS:
            self.verdict = self._judged()
            self.timings.clear()
        return self.verdict or None

    def _judged(self) -> str:
        host = min(timing.host for timing in self.timings)
        if host < SHORT:
            return f"a plain call takes the host {host * 1e6:.0f} microseconds, a replay no fewer"
        votes = 0
        for timing in self.timings:
            device = timing.device()
            votes += device is not None and timing.host >= HOST_PART * device
        return "" if 2 * votes > len(self.timings) else "the device sets its pace, not the host"
