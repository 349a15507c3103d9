"""Measured choice between ways to do the same work on a GPU.

In: named callables that launch work on the current stream, and a key that says all that the choice depends on. Out: the
name of the quickest. What always holds: the device's time is compared, not the host's; ways take turns; a choice is made
once a machine (a file a key); a way that cannot run is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from inductor_backend.runtime.cuda_launch import current_stream, launches
from inductor_backend.runtime.triton_build import Kernel, LoadedKernel, load_what_compiles
from inductor_backend.torch_private import keep_device_busy
from tracer_core.plugin_api import cache_folder, logger

#: Rounds of which the median counts, and launches of a round.
ROUNDS, LAUNCHES = 5, 10

#: Times this much apart count as equal: then the way that comes first is taken.
EQUAL = 0.97


def chosen(
    key: str, device: torch.device, make: Callable[[], Mapping[str, Callable[[], None]]], what: str
) -> str:
    """The name of the quickest way; "" where none can run. what: the work, for people. make: gives the ways, the one that
    wins where times are equal first; only called where no choice is stored."""
    file = _file(key, device)
    try:
        stored = json.loads(file.read_text())
        return str(stored["chosen"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with torch.cuda.device(device), torch.no_grad():
        times = _times(make())
    if not times:
        return ""
    name = _quickest(times)
    _write(file, {"chosen": name, "milliseconds": times, "what": what})
    logger().info("%s: %s of %s", what, name, ", ".join(f"{n}: {t:.4f} ms" for n, t in times.items()))
    return name


def _quickest(times: Mapping[str, float]) -> str:
    first = next(iter(times))
    best = min(times, key=times.__getitem__)
    return best if times[best] < EQUAL * times[first] else first


def _file(key: str, device: torch.device) -> Path:
    import triton  # heavy: triton

    machine = (torch.cuda.get_device_name(device), torch.__version__, triton.__version__, ROUNDS, LAUNCHES)
    name = hashlib.sha256(repr((machine, key)).encode()).hexdigest()[:32]
    return cache_folder("triton_choices") / f"{name}.json"


def _write(file: Path, value: object) -> None:
    handle, temporary = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(handle, "w") as stream:
        json.dump(value, stream)
    os.replace(temporary, file)


def _times(ways: Mapping[str, Callable[[], None]]) -> dict[str, float]:
    """Median milliseconds of one call of each."""
    for run in ways.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, run in ways.items():
            found[name].append(_round(run))
    return {name: sorted(times)[len(times) // 2] for name, times in found.items()}


def _round(run: Callable[[], None]) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    keep_device_busy()  # the host gets ahead, so that its time between launches is not counted
    first.record()
    for _ in range(LAUNCHES):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / LAUNCHES


def kernel_ways(
    kernels: Mapping[str, tuple[Kernel, int]], arguments: list[torch.Tensor | int], device: torch.device
) -> dict[str, Callable[[], None]]:
    """A callable for each kernel that compiles and fits the device. kernels: with the number of programs; arguments: of
    all of them alike."""
    names = list(kernels)
    loaded = load_what_compiles([kernels[name][0] for name in names], device)
    ways = {}
    for name, kernel in zip(names, loaded, strict=True):
        if isinstance(kernel, LoadedKernel):
            ways[name] = _launch(kernel, kernels[name][1], arguments, device)
        else:
            logger().debug("%s is left out: %s", name, kernel)
    return ways


def _launch(
    kernel: LoadedKernel, programs: int, arguments: list[torch.Tensor | int], device: torch.device
) -> Callable[[], None]:
    parameters = [(number, 0) for number in range(len(arguments))]
    run, description = launches(len(arguments), [(kernel, programs, parameters)])
    return lambda: run(description, current_stream(device), *arguments)
