"""What the benchmarks of training steps share: counts of captures, seconds of a step, CUDA graphs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from benchmarks import harness

#: Steps after the last measurement: CUDA graphs are captured again.
STEPS_AFTER = 12


@contextlib.contextmanager
def counting(is_ours: bool) -> Iterator[tuple[Any, list[str]]]:
    """Yields what counts graphs and breaks (None but for ours), and the list of fallbacks."""
    if not is_ours:
        yield None, []
        return
    from tracer_core.testing import CaptureCounter

    with CaptureCounter() as counted, harness.noted_fallbacks() as fallbacks:
        yield counted, fallbacks


def counts(counted: Any, fallbacks: list[str]) -> dict[str, Any]:
    """Returns what `counting` found, for a row; nothing but for ours."""
    if counted is None:
        return {}
    return {
        "graphs": len(counted.graphs),
        "breaks": len(counted.breaks),
        "kinds": sorted({kind for kind, _, _ in counted.breaks}),
        "fallbacks": fallbacks,
        "cuda_graphs": cuda_graphs(),
    }


def measure_tiles(step: Callable[[], Any], measure: bool = True, limit: float = 60.0) -> float:
    """Steps until our graphs' block sizes are measured (`autotune.tile_search`), at most `limit`
    seconds; returns the seconds it took. measure: False: until all is compiled that is measured,
    which nothing on the device disturbs."""
    from inductor_backend.autotune import tile_search

    def waits(search: tile_search.TileSearch) -> bool:
        return search.running if measure else search.compiling

    start = time.perf_counter()
    slice_seconds = tile_search.SLICE if measure else 0.0
    with mock.patch.object(tile_search, "SLICE", slice_seconds):
        while any(map(waits, tuple(tile_search.SEARCHES))):
            if time.perf_counter() - start > limit:
                break
            step()
    for _ in range(STEPS_AFTER if measure else 0):
        step()
    return time.perf_counter() - start


def seconds_of(step: Callable[[int], Any], device: str, steps: int) -> float:
    """Returns the mean seconds of a step. step: takes its number."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(steps):
        step(number)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def cuda_graphs() -> list[str]:
    """Returns what became of the graphs that CUDA graphs were considered for."""
    runners = sys.modules.get("cudagraphs_backend.runner")
    left = sys.modules.get("inductor_backend.runtime.cuda.graphs")
    match = (
        []
        if runners is None
        else [f"{runner.row().name}: {runner.row().sentence()}" for runner in runners.runners()]
    )
    return match + ([] if left is None else [f"{name}: {reason}" for name, reason in left.report()])
