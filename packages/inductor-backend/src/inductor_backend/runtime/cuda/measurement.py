"""Measures how long candidates for the same work take on a GPU.

Candidates are named callables that launch work on the current stream. Device time is compared, not
host time, and candidates alternate. A candidate that cannot run is left out. `measurement_store`
stores the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from inductor_backend.runtime.cuda import measurement_store
from inductor_backend.runtime.cuda.build import LoadedKernel, load_what_compiles
from inductor_backend.runtime.cuda.launch import Matrix, current_stream, exactly
from inductor_backend.runtime.cuda.triton_compile import Kernel
from inductor_backend.torch_private import keep_device_busy
from tracer_core.plugin_api import logger

#: `measurement_store.ROUNDS` and `LAUNCHES` where the program waits for the measurement.
QUICK_ROUNDS, QUICK_LAUNCHES = 3, 5

#: Candidates slower than the fastest by this factor in the first round are dropped.
HOPELESS = 2.0

#: Cycles that the device waits while the host gets ahead; a later entry where one was too short.
WAITS = (300_000, 1_000_000, 8_000_000, 64_000_000)

#: Times within this ratio count as equal: then the first candidate wins.
EQUAL = 0.97


def chosen(
    key: str, device: torch.device, make: Callable[[], Mapping[str, Callable[[], None]]], what: str
) -> str:
    """Returns the name of the fastest candidate; "" where none can run. what: the work, for logs.
    make: returns the candidates, preferred ones first for ties; only called where no choice is
    stored."""
    result = measurement_store.lookup(key, device)
    if result is not None:
        return result
    with torch.cuda.device(device), torch.no_grad():
        measured = times(make())
    if not measured:
        return ""
    name = fastest(measured)
    measurement_store.insert(key, device, {"chosen": name, "milliseconds": measured, "what": what})
    logger().info(
        "%s: %s of %s", what, name, ", ".join(f"{n}: {t:.4f} ms" for n, t in measured.items())
    )
    return name


def fastest(times: Mapping[str, float]) -> str:
    """Returns the fastest candidate, the first where times are equal."""
    first = next(iter(times))
    best = min(times, key=times.__getitem__)
    return best if times[best] < EQUAL * times[first] else first


def times(candidates: Mapping[str, Callable[[], None]], quick: bool = False) -> dict[str, float]:
    """Returns median milliseconds of one call of each; hopeless candidates are measured in one
    round only. quick: in fewer rounds."""
    rounds, launches = measurement_store.ROUNDS, measurement_store.LAUNCHES
    if quick:
        rounds, launches = QUICK_ROUNDS, QUICK_LAUNCHES
    for run in candidates.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    result = {name: [_round(run, launches)] for name, run in candidates.items()}
    limit = HOPELESS * min(times[0] for times in result.values()) if result else 0.0
    first = next(iter(candidates), None)
    for _ in range(rounds - 1):
        for name, run in candidates.items():
            if name == first or result[name][0] <= limit:
                result[name].append(_round(run, launches))
    return {name: sorted(times)[len(times) // 2] for name, times in result.items()}


def _round(run: Callable[[], None], launches: int) -> float:
    """Measures one round: milliseconds of a launch. A wait on the device lets the host get ahead, so that its launch gaps are
    not counted; the wait grows where the host stays behind."""
    for wait in WAITS:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        keep_device_busy(wait)
        first.record()
        for _ in range(launches):
            run()
        last.record()
        ahead = not first.query()
        last.synchronize()
        if ahead:
            break
    milliseconds: float = first.elapsed_time(last)
    return milliseconds / launches


def loaded(
    kernels: Mapping[str, tuple[Kernel, int]], device: torch.device
) -> dict[str, LoadedKernel]:
    """Returns the kernels that compile and fit the device."""
    what_compiles = load_what_compiles([kernel for kernel, _ in kernels.values()], device)
    usable = {}
    for name, kernel in zip(kernels, what_compiles, strict=True):
        if isinstance(kernel, LoadedKernel):
            usable[name] = kernel
        else:
            logger().debug("%s is left out: %s", name, kernel)
    return usable


def launch(
    kernel: LoadedKernel,
    programs: int,
    arguments: list[torch.Tensor | int],
    matrices: Sequence[Matrix],
    device: torch.device,
) -> Callable[[], None]:
    """Launches the kernel on the current stream."""
    parameters = [(number, 0) for number in range(len(arguments))]
    run, description = exactly(len(arguments), [(kernel, programs, parameters, matrices)])
    return lambda: run(description, current_stream(device), *arguments)
