"""The CUDA driver API through launch.cpp: contexts of devices, and loading of machine code."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from inductor_backend.runtime.cpp.build import Library, build, load_binary

_restored: list[Library] = []


def restore(binary: bytes) -> None:
    """Loads a stored ``library().read_binary()``: then no compiler is needed. Raises BackendError if
    it is damaged or was built for another processor."""
    if not _restored:
        _restored.append(load_binary(binary, name="cuda_launch"))


@functools.cache
def library() -> Library:
    """Returns the compiled launch.cpp (built once per machine)."""
    if _restored:
        return _restored[0]
    return build([(Path(__file__).parent / "launch.cpp").read_text()], name="cuda_launch")


@functools.cache
def context(device: int) -> int:
    """Returns the CUDA context that the runtime uses for a device, whichever is current on this
    thread."""
    result = ctypes.c_int64(0)
    library().function("run_context", 2)(ctypes.addressof(result), device)
    return result.value


def load(name: str, code: bytes, shared: int, most_shared: int, device: int) -> tuple[int, int]:
    """Loads a kernel on a device; returns the driver's handle and the most threads per block. name:
    in the machine code. shared: bytes that a launch will ask for. most_shared: the device's limit
    per block. device: its number. Raises RuntimeError with the driver's message."""
    message, result = ctypes.create_string_buffer(256), (ctypes.c_int64 * 3)()
    image, symbol = (
        ctypes.create_string_buffer(code, len(code)),
        ctypes.create_string_buffer(name.encode()),
    )
    address = ctypes.addressof
    run = library().function("load_kernel", 7)
    run(
        address(image),
        address(symbol),
        shared,
        most_shared,
        context(device),
        address(result),
        address(message),
    )
    handle, most_threads, status = result
    if status:
        raise RuntimeError(f"{message.value.decode(errors='replace')} (CUDA driver error {status})")
    return handle, most_threads
