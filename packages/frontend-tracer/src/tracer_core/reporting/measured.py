"""Times of kernels, operators and graph breaks from a profile, and the memory's bandwidth."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

import torch

from tracer_core.errors import OptionError

#: Bytes of the copy that measures a bandwidth: more than a processor's cache. Its repetitions.
COPIED, REPEATS = 1 << 28, 5


class Times:
    """The seconds of rows, by the graph around them and their name."""

    def __init__(self, profile: Any, graphs: Collection[str]) -> None:
        """profile: a torch.profiler.profile that has ended. graphs: the names of graphs. Raises
        OptionError for anything else."""
        self._seconds: dict[tuple[str, str], list[float]] = {}
        try:
            events = profile.events()
        except (AttributeError, AssertionError, RuntimeError) as error:
            reason = f"profile={profile!r}: a torch.profiler.profile that has ended is needed"
            raise OptionError(f"{reason} ({error})") from error
        for event in events:
            around = event.cpu_parent
            while around is not None and _name(around) not in graphs:
                around = around.cpu_parent
            key = "" if around is None else _name(around), event.name
            microseconds = event.device_time_total or event.cpu_time_total
            self._seconds.setdefault(key, []).append(microseconds / 1e6)

    def of(self, graph: str, rows: Collection[str]) -> float | None:
        """Returns the median seconds of what has these rows; None where the profile has none."""
        runs = [self._seconds.get((graph, row)) or self._seconds.get(("", row)) for row in rows]
        seconds = [item for row in runs for item in row or ()]
        return statistics.median(seconds) if seconds else None


def _name(event: Any) -> str:
    return str(event.name).partition(" (")[0]


@functools.cache
def bandwidth(device: str) -> float:
    """Returns the bytes a second of a large copy on a device, each read and written: measured once
    a process."""
    source = torch.empty(COPIED // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    wait: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for _ in range(REPEATS):
        wait()
        begin = time.perf_counter()
        target.copy_(source)
        wait()
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best
