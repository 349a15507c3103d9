"""Machine code of Triton kernels for GPUs that need not be here, as packages hold it.

In: the kernels of a graph, and architectures (``"sm_90"``). Out: JSON, from which another process
runs them without Triton and without a compiler. Source of the limits: CUDA C++ Programming Guide,
"Technical Specifications per Compute Capability".
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from inductor_backend.runtime.cuda import driver
from inductor_backend.runtime.cuda.build import provide, start_for
from inductor_backend.runtime.cuda.requirements import capability, demand_triton
from inductor_backend.runtime.cuda.triton_compile import Binary, Kernel, target_of
from tracer_core.plugin_api import BackendError


@dataclass(frozen=True, slots=True)
class Architecture:
    """shared: most bytes of shared memory of a thread block. descriptors: whether it copies blocks by
    tensor descriptors. forward: whether later minor versions run its machine code (from 9.0 on Triton
    uses features that no other version has)."""

    shared: int
    descriptors: bool = False
    forward: bool = False


#: Compute capability times ten -> what it offers.
ARCHITECTURES: dict[int, Architecture] = {
    70: Architecture(96 << 10, forward=True),
    75: Architecture(64 << 10, forward=True),
    80: Architecture(163 << 10, forward=True),
    86: Architecture(99 << 10, forward=True),
    89: Architecture(99 << 10, forward=True),
    90: Architecture(227 << 10, descriptors=True),
    100: Architecture(227 << 10, descriptors=True),
    103: Architecture(227 << 10, descriptors=True),
    120: Architecture(99 << 10, descriptors=True),
}


def to_json(
    kernels: Sequence[Kernel], device: torch.device, architectures: Sequence[str]
) -> dict[str, Any]:
    """Compiles kernels for pointers of any alignment. architectures: none means the device's own.
    Raises BackendError for an unknown architecture, and for a kernel that one of them cannot run."""
    held = _parsed(architectures) or [capability(device.index)]
    demand_triton()
    waiting = [
        (kernel, number, aligned, start_for(kernel, target_of(number), aligned))
        for kernel, number, aligned in itertools.product(kernels, held, (True, False))
    ]
    rows: dict[str, list[dict[str, Any]]] = {str(number): [] for number in held}
    for kernel, number, aligned, future in waiting:
        binary = future.result()
        _demand_fit(kernel, binary, number)
        facts = asdict(binary) | {"code": base64.b64encode(binary.code).decode("ascii")}
        rows[str(number)].append({"kernel": kernel.key(), "aligned": aligned, "binary": facts})
    launcher = base64.b64encode(driver.library().read_binary()).decode("ascii")
    return {"architectures": rows, "launcher": launcher}


def restore(stored: dict[str, Any], device: torch.device) -> None:
    """Makes stored machine code known to `build.load_kernels`. Raises BackendError if none of it is
    for the device."""
    here = capability(device.index)
    best = fitting(here, map(int, stored["architectures"]))
    if best is None:
        held = ", ".join(name_of(int(number)) for number in stored["architectures"])
        raise BackendError(
            "inductor",
            "deserialize",
            f"it holds machine code for {held}, and {torch.cuda.get_device_name(device)} is"
            f" {name_of(here)}; make it again with architectures=({name_of(here)!r},)",
        )
    driver.restore(base64.b64decode(stored["launcher"]))
    for row in stored["architectures"][str(best)]:
        facts = row["binary"] | {"code": base64.b64decode(row["binary"]["code"])}
        provide(row["kernel"], here, row["aligned"], Binary(**facts))


def fitting(here: int, held: Iterable[int]) -> int | None:
    """Returns the best of `held` whose machine code a GPU of capability `here` runs, or None."""
    fits = [
        number
        for number in held
        if number == here
        or (number < here and number // 10 == here // 10 and ARCHITECTURES[number].forward)
    ]
    return max(fits, default=None)


def name_of(capability: int) -> str:
    """Returns the name of an architecture: ``"sm_90"``."""
    return f"sm_{capability}"


def _parsed(names: Sequence[str]) -> list[int]:
    """Returns compute capabilities, each once."""
    known = {name_of(architecture): architecture for architecture in ARCHITECTURES}
    for name in names:
        if name not in known:
            raise BackendError(
                "inductor", "serialize", f"unknown architecture {name!r}; known: {', '.join(known)}"
            )
    return list(dict.fromkeys(known[name] for name in names))


def _demand_fit(kernel: Kernel, binary: Binary, capability: int) -> None:
    """Raises BackendError if no GPU of this capability runs the kernel."""
    limits, name = ARCHITECTURES[capability], name_of(capability)
    problem = None
    if kernel.matrices and not limits.descriptors:
        problem = f"copies blocks by tensor descriptors, which {name} lacks"
    elif binary.scratch:
        problem = f"asks for global scratch memory on {name}"
    elif binary.shared > limits.shared:
        problem = f"needs {binary.shared} bytes of shared memory, {name} has {limits.shared}"
    if problem is not None:
        raise BackendError("inductor", "serialize", f"kernel {kernel.name} {problem}")
