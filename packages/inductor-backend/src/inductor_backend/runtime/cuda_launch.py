"""Runs of CUDA kernels: one call from Python launches all of them.

In: loaded kernels, and for each launch its grid and where each parameter comes from. Out: a callable of the run's
description, the stream and the run's slots (tensors or ints). What always holds: no Python runs for a kernel or a
parameter; a pointer that is no multiple of 16 gets a kernel that does not count on it; the kernels' own device is
current while they are launched. On CPU tensors (Triton's interpreter) the same description is walked in Python.
"""

from __future__ import annotations

import ctypes
import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inductor_backend.runtime.build_cpp import Library, build
from inductor_backend.runtime.triton_build import LoadedKernel
from inductor_backend.torch_private import cuda_raw_stream
from tracer_core.plugin_api import BackendError


@dataclass(frozen=True, slots=True)
class slot:  # reads as a function in generated modules
    """A grid that the call brings: the number of the slot that holds it."""

    number: int


#: The room that cuda_launch.cpp has for one launch.
MOST_PARAMETERS = 256

#: (kernel, programs, parameters as (slot, offset))
Launch = tuple[LoadedKernel, "int | slot", Sequence[tuple[int, int]]]


@functools.cache
def library() -> Library:
    """The compiled cuda_launch.cpp (built once a machine)."""
    return build([(Path(__file__).parent / "cuda_launch.cpp").read_text()], name="cuda_launch")


def current_stream(device: torch.device) -> int:
    """The handle of the device's current stream; 0 for a CPU."""
    return cuda_raw_stream(device.index) if device.type == "cuda" else 0


def launches(slots: int, described: Sequence[Launch]) -> tuple[Callable[..., None], int]:
    """The run's callable and the address of its description, the callable's first argument."""
    if any(kernel.interpreted is not None for kernel, _, _ in described):
        return functools.partial(_interpret, described), 0
    description = _Description(described)
    function = library().function("run_kernels", slots + 2)
    _DESCRIPTIONS[id(description.words)] = description
    return function, ctypes.addressof(description.words)


#: Descriptions live as long as the process, like the kernels that they name.
_DESCRIPTIONS: dict[int, _Description] = {}


class _Description:
    """The int64 array that cuda_launch.cpp reads. Mutable: `repair` fills in functions."""

    def __init__(self, described: Sequence[Launch]) -> None:
        self.described = described
        self.callback = ctypes.CFUNCTYPE(None)(self.repair)
        words = [context(), len(described), ctypes.cast(self.callback, ctypes.c_void_p).value or 0]
        self.generic: list[int] = []
        for kernel, grid, parameters in described:
            if len(parameters) > MOST_PARAMETERS:
                detail = f"kernel {kernel.kernel.name} takes {len(parameters)} parameters, at most {MOST_PARAMETERS}"
                raise BackendError("inductor", "build", detail)
            self.generic.append(len(words) + 1)
            place, count = (grid.number, 0) if isinstance(grid, slot) else (-1, grid)
            words += [kernel.function, 0, place, count, kernel.threads, kernel.shared, len(parameters), 0]
            for number, (source, offset) in enumerate(parameters):
                words += [source, offset, int(number < kernel.pointers)]
        self.words = (ctypes.c_int64 * len(words))(*words)

    def repair(self) -> None:
        """Fills in kernels for pointers of any alignment. Called from C: an exception cannot leave it."""
        try:
            for place, (kernel, _, _) in zip(self.generic, self.described, strict=True):
                other = kernel.unaligned()
                self.words[place + 6] = other.shared
                self.words[place] = other.function  # last: from now on it is launched
        except BaseException:
            traceback.print_exc()


def context() -> int:
    """The CUDA context that is current on this thread."""
    result = ctypes.c_int64(0)
    library().function("run_context", 1)(ctypes.addressof(result))
    return result.value


def _interpret(described: Sequence[Launch], description: int, stream: int, *slots: Any) -> None:
    for kernel, grid, parameters in described:
        programs = slots[grid.number] if isinstance(grid, slot) else grid
        if programs:
            assert kernel.interpreted is not None
            given = (_at(slots[source], offset) for source, offset in parameters)
            kernel.interpreted[(programs,)](*given, **kernel.constants)


def _at(value: Any, offset: int) -> Any:
    """The tensor from this byte on."""
    return value.flatten()[offset // value.itemsize :] if offset else value
