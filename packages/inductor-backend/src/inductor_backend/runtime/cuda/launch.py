"""Launches CUDA kernels: one call from Python launches a whole run of them.

A run is described once by its kernels, and for each launch its grid and the source of each
parameter; the callable takes the description, the stream and the run's slots (tensors or ints). No
Python runs per kernel or parameter. A pointer that is no multiple of 16 gets a kernel without that
assumption. The kernels' own device is current during the launches. On CPU tensors (Triton's
interpreter) the same description is interpreted in Python.
"""

from __future__ import annotations

import ctypes
import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from inductor_backend.limits import MAX_LAUNCH_PARAMETERS
from inductor_backend.runtime.cuda.build import LoadedKernel
from inductor_backend.runtime.cuda.driver import context, library
from inductor_backend.torch_private import cuda_raw_stream
from tracer_core.plugin_api import BackendError


@dataclass(frozen=True, slots=True)
class slot:  # reads as a function in generated modules
    """A grid size that the call brings: the number of the slot that holds it."""

    number: int


#: (kernel, programs, parameters as (slot, offset)); matrices that TMA reads come fourth, each as
#: (number of its pointer parameter, byte offset, rows, columns, row stride in bytes).
Size = Union[int, slot]
Matrix = tuple[int, int, Size, Size, int]
Launch = Union[
    tuple[LoadedKernel, Size, Sequence[tuple[int, int]]],
    tuple[LoadedKernel, Size, Sequence[tuple[int, int]], Sequence[Matrix]],
]

#: The driver's numbers of element types. TMA loads round float32 to TF32, as cuBLAS does.
ELEMENT_TYPES = {"fp16": 6, "bf16": 9, "fp32": 11}
WIDTHS = {"fp16": 2, "bf16": 2, "fp32": 4}


def current_stream(device: torch.device) -> int:
    """Returns the handle of the device's current stream; 0 for a CPU."""
    return cuda_raw_stream(device.index) if device.type == "cuda" else 0


def launches(slots: int, described: Sequence[Launch]) -> tuple[Callable[..., None], int]:
    """Returns the run's callable and the address of its description, the callable's first argument."""
    if any(launch[0].interpreted is not None for launch in described):
        return functools.partial(_interpret, described), 0
    description = _Description(described)
    function = library().function("run_kernels", slots + 2)
    _DESCRIPTIONS[id(description.fields)] = description
    return function, ctypes.addressof(description.fields)


#: Descriptions live as long as the process, like the kernels that they name.
_DESCRIPTIONS: dict[int, _Description] = {}


class _Description:
    """The int64 array that launch.cpp reads. `repair` fills in functions."""

    def __init__(self, described: Sequence[Launch]) -> None:
        self.described = described
        self.callback = ctypes.CFUNCTYPE(None)(self.repair)
        first = described[0][0].device.index if described else None
        here = context(torch.cuda.current_device() if first is None else first)
        fields = [here, len(described), ctypes.cast(self.callback, ctypes.c_void_p).value or 0]
        self.generic: list[int] = []
        for kernel, grid, parameters, *matrices in described:
            if len(parameters) > MAX_LAUNCH_PARAMETERS:
                detail = (
                    f"kernel {kernel.kernel.name} takes {len(parameters)} parameters, at most"
                    f" {MAX_LAUNCH_PARAMETERS}"
                )
                raise BackendError("inductor", "build", detail)
            self.generic.append(len(fields) + 1)
            fields += [
                kernel.function,
                0,
                *_size(grid),
                kernel.threads,
                kernel.shared,
                len(parameters),
                0,
                0,
            ]
            fields.append(len(kernel.kernel.matrices))
            for number, (source, offset) in enumerate(parameters):
                fields += [source, offset, int(number < kernel.pointers)]
            fields += _matrices(kernel, matrices[0] if matrices else ())
        self.fields = (ctypes.c_int64 * len(fields))(*fields)

    def repair(self) -> None:
        """Fills in kernels for pointers of any alignment. Called from C: it must not raise."""
        try:
            for place, (kernel, *_) in zip(self.generic, self.described, strict=True):
                other = kernel.unaligned()
                self.fields[place + 6], self.fields[place + 7] = other.shared, other.threads
                self.fields[place] = other.function  # last: this publishes the kernel
        except BaseException:
            traceback.print_exc()


def _size(size: Size) -> tuple[int, int]:
    """Returns (slot or -1, number)."""
    return (size.number, 0) if isinstance(size, slot) else (-1, size)


def _matrices(kernel: LoadedKernel, matrices: Sequence[Matrix]) -> list[int]:
    fields: list[int] = []
    described = zip(matrices, kernel.kernel.matrices, kernel.copies, strict=True)
    for (parameter, start, rows, columns, stride), (kind, *_), copies in described:
        fields += [parameter, start, *_size(rows), *_size(columns), stride, stride // WIDTHS[kind]]
        fields += [*copies["block_size"], ELEMENT_TYPES[kind], copies["swizzle"]]
    return fields


def _interpret(described: Sequence[Launch], description: int, stream: int, *slots: Any) -> None:
    def number(size: Size) -> int:
        return int(slots[size.number]) if isinstance(size, slot) else size

    for kernel, grid, parameters, *matrices in described:
        programs, arguments = (
            number(grid),
            [_at(slots[source], offset) for source, offset in parameters],
        )
        if not programs:
            continue
        assert kernel.interpreted is not None
        constants = dict(kernel.constants)
        if kernel.kernel.matrices:
            result = [
                _descriptor(
                    arguments[parameter], start, (number(rows), number(columns)), stride, form
                )
                for (parameter, start, rows, columns, stride), form in zip(
                    matrices[0], kernel.kernel.matrices, strict=True
                )
            ]
            constants["BULK"] = all(address is not None for address in result)
            arguments += result
        kernel.interpreted[(programs,)](*arguments, **constants)


def _descriptor(
    memory: torch.Tensor,
    start: int,
    sizes: tuple[int, int],
    stride: int,
    form: tuple[str, int, int],
) -> Any:
    """Returns a matrix as the interpreter's tensor descriptor, None where TMA could not read it."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # heavy: triton

    if (memory.data_ptr() + start) % 16 or min(sizes) < 1:
        return None
    width = memory.element_size()
    base = memory.as_strided((1,), (1,), memory.storage_offset() + start // width)
    return TensorDescriptor(base, list(sizes), [stride // width, 1], list(form[1:]))


def _at(value: Any, offset: int) -> Any:
    """Returns the tensor from this byte on."""
    return value.flatten()[offset // value.itemsize :] if offset else value
