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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from inductor_backend.limits import MAX_LAUNCH_PARAMETERS
from inductor_backend.runtime.cuda import faster_tiles
from inductor_backend.runtime.cuda.build import LoadedKernel
from inductor_backend.runtime.cuda.driver import context, library
from inductor_backend.runtime.cuda.triton_compile import Kernel
from inductor_backend.runtime.profile_rows import begin_kernel
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
    """Returns the run's callable and the address of its description, the callable's first argument.
    Kernels for which a faster tile is stored are launched with that (`faster_tiles`), others from
    `use_faster_tile` on."""
    run = _Run([faster_tiles.replaced(launch) for launch in described])
    for number, (loaded, programs, *_) in enumerate(run.described):
        if loaded.kernel.searched and isinstance(programs, int):
            _SEARCHED[faster_tiles.key_of(loaded.kernel, programs)].append((run, number))
    return run.called(slots)


def exactly(slots: int, described: Sequence[Launch]) -> tuple[Callable[..., None], int]:
    """Returns the same for a run that always launches the described kernels."""
    return _Run(list(described)).called(slots)


def use_faster_tiles(launched: Iterable[tuple[Kernel, int]], device: torch.device) -> int:
    """Launches the faster kernels that are stored (`faster_tiles`) for kernels and their numbers of
    programs, on a device, from the next call on; returns how many launches that changed. CUDA graphs
    keep what they captured."""
    changed: Counter[_Run] = Counter()
    for kernel, programs in launched:
        for run, number in _SEARCHED.get(faster_tiles.key_of(kernel, programs), ()):
            launch = run.described[number]
            faster = faster_tiles.replaced(launch) if launch[0].device == device else launch
            if faster is not launch:
                run.described[number] = faster
                changed[run] += 1
    for run in changed:
        run.describe()
    return changed.total()


class _Run:
    """Mutable: the launches of a run. `address` holds the address of their description; a new one is
    put there in one store, and the old one stays for calls that are under way."""

    def __init__(self, described: list[Launch]) -> None:
        self.described = described
        self.address = ctypes.c_int64(0)
        self._descriptions: list[_Description] = []

    @property
    def is_interpreted(self) -> bool:
        return bool(self.described) and self.described[0][0].interpreted is not None

    def called(self, slots: int) -> tuple[Callable[..., None], int]:
        if self.is_interpreted:
            return functools.partial(_interpret, self), 0
        self.describe()
        _RUNS.append(self)
        return library().function("run_kernels", slots + 2), ctypes.addressof(self.address)

    def describe(self) -> None:
        """Has calls from now on launch what is described."""
        if not self.is_interpreted:
            description = _Description(tuple(self.described))
            self._descriptions.append(description)
            self.address.value = ctypes.addressof(description.fields)


#: Runs live as long as the process, like the kernels that they name.
_RUNS: list[_Run] = []

#: Where kernels are launched whose tiles may be replaced, by `faster_tiles.key_of`.
_SEARCHED: defaultdict[str, list[tuple[_Run, int]]] = defaultdict(list)


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
            fields += [len(kernel.kernel.matrices), int(kernel.overlaps)]
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


def _interpret(run: _Run, description: int, stream: int, *slots: Any) -> None:
    def number(size: Size) -> int:
        return int(slots[size.number]) if isinstance(size, slot) else size

    for place, (kernel, grid, parameters, *matrices) in enumerate(run.described):
        begin_kernel(place)
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
