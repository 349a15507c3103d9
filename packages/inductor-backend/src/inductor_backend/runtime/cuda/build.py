"""Loads Triton kernels: from the kernel store (`kernel_store`), else by Triton's compiler, in
parallel.

Equal kernels of a process are compiled once. Triton is imported only for kernels that are not in
the store. Triton's compile errors become a BackendError with the kernel's text.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor_backend.runtime.cuda import driver, kernel_store
from inductor_backend.runtime.cuda.compile_workers import Workers, as_many_as_here
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.runtime.cuda.requirements import active_target, capability
from inductor_backend.runtime.cuda.triton_compile import (
    Binary,
    Kernel,
    NotCompiled,
    binary_of,
    function_of,
    remedy,
    target_of,
)
from tracer_core.plugin_api import BackendError, logger


@dataclass
class LoadedKernel:
    """function: the driver's handle. threads, shared: of a launch. pointers: how many of its
    parameters are pointers. copies: Triton's metadata of each matrix's tensor descriptor. overlaps:
    as `Binary`. interpreted: replaces all these under Triton's interpreter. `unaligned` is made on
    first use."""

    kernel: Kernel
    device: torch.device
    function: int = 0
    threads: int = 0
    shared: int = 0
    copies: Sequence[Mapping[str, Any]] = ()
    overlaps: bool = False
    interpreted: Any = None
    _unaligned: LoadedKernel | None = field(default=None, repr=False)

    @property
    def pointers(self) -> int:
        return len(self.kernel.pointers)

    @property
    def constants(self) -> Mapping[str, int]:
        return self.kernel.constants

    def unaligned(self) -> LoadedKernel:
        """Returns the same kernel for pointers of any alignment."""
        if self._unaligned is None:
            # called within a run: the current device must not change
            here = capability(self.device.index)
            result = _stored(self.kernel, here, aligned=False)
            if result is None:
                result = _binary(binary_of, self.kernel, target_of(here), False)
            self._unaligned = _load(result, self.kernel, self.device, aligned=False)
        return self._unaligned


def load_kernels(kernels: Sequence[Kernel], device: torch.device) -> list[LoadedKernel]:
    """Loads all kernels of a module. Raises BackendError where Triton does not compile one."""
    if device.type != "cuda":
        if not interpreting():
            raise BackendError(
                "inductor", "build", "Triton kernels on CPU tensors need TRITON_INTERPRET=1"
            )
        return [LoadedKernel(kernel, device, interpreted=function_of(kernel)) for kernel in kernels]
    with torch.cuda.device(device):
        waiting = start(kernels)
        results = [future.result() for future in waiting]
        return [
            _load(result, kernel, device) for kernel, result in zip(kernels, results, strict=True)
        ]


def load_stored(kernel: Kernel, device: torch.device) -> LoadedKernel | None:
    """Loads a kernel whose machine code is in the kernel store or a package; else returns None.
    Raises BackendError where the device cannot run it."""
    if device.type != "cuda":
        return load_kernels([kernel], device)[0]
    with torch.cuda.device(device):
        binary = _stored(kernel, capability(), aligned=True)
        return None if binary is None else _load(binary, kernel, device)


def load_what_compiles(
    kernels: Sequence[Kernel], device: torch.device
) -> list[LoadedKernel | BackendError]:
    """Returns each loaded kernel, or the reason why it cannot run on the device."""
    if device.type != "cuda":
        return list(load_kernels(kernels, device))
    with torch.cuda.device(device):
        waiting = start(kernels)
        result: list[LoadedKernel | BackendError] = []
        for kernel, future in zip(kernels, waiting, strict=True):
            try:
                result.append(_load(future.result(), kernel, device))
            except BackendError as error:
                result.append(error)
            except Exception as error:  # the driver's: too many registers or too much shared memory
                result.append(BackendError("inductor", "build", f"{type(error).__name__}: {error}"))
        return result


def build_side_by_side(kernels: Sequence[Kernel], device: torch.device) -> None:
    """Builds all kernels in parallel and waits; compile errors are raised where the kernel is
    loaded."""
    with torch.cuda.device(device):
        waiting = start(kernels)
    wait(waiting)


def _load(
    binary: Binary, kernel: Kernel, device: torch.device, aligned: bool = True
) -> LoadedKernel:
    """Loads a kernel on the current device."""
    if binary.scratch:
        raise BackendError(
            "inductor", "build", f"kernel {kernel.name} asks for global scratch memory"
        )
    number = torch.cuda.current_device() if device.index is None else device.index
    most: int = torch.cuda.get_device_properties(number).shared_memory_per_block_optin  # type: ignore[attr-defined]
    if binary.shared > most:
        detail = f"kernel {kernel.name} needs {binary.shared} bytes of shared memory, {device} has {most}"
        raise BackendError("inductor", "build", detail)
    try:
        function, most_threads = driver.load(binary.name, binary.code, binary.shared, most, number)
    except RuntimeError as error:  # the driver's
        detail = f"kernel {kernel.name} cannot be loaded: {error}{remedy(error)}"
        raise BackendError("inductor", "build", detail) from error
    threads = binary.warps * 32
    if threads > most_threads:
        detail = f"kernel {kernel.name} has {threads} threads, its registers allow {most_threads}"
        raise BackendError("inductor", "build", detail)
    if aligned and len(binary.copies) != len(kernel.matrices):
        detail = (
            f"kernel {kernel.name}: Triton does not say how its {len(kernel.matrices)} matrices are"
            " copied"
        )
        raise BackendError("inductor", "build", detail)
    return LoadedKernel(
        kernel, device, function, threads, binary.shared, binary.copies, binary.overlaps
    )


@functools.cache
def warm_up() -> None:
    """Starts, on a thread, what the first kernel of every process needs: the launcher, and, where
    no kernel is stored, imports, Triton's hash of itself and its driver."""
    threading.Thread(target=_warm_up, name="triton-warm-up", daemon=True).start()


def _warm_up() -> None:
    waiting = [_pool().submit(driver.library)]
    try:
        capability()
        if not kernel_store.any_here():
            from triton.runtime import cache  # heavy: triton

            if hasattr(cache, "triton_key"):
                waiting.append(_pool().submit(cache.triton_key))
            active_target()
        for future in waiting:
            future.result()
    except Exception as error:  # raised where the kernel is built
        logger().debug("warming up Triton: %s: %s", type(error).__name__, error)


#: By the kernel's key and the device's compute capability.
_futures: dict[tuple[str, int], Future[Binary]] = {}
_futures_lock = threading.Lock()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2)), thread_name_prefix="triton")

    def end() -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        _workers().end()

    # Before Python joins the pool's threads: an interrupted program would compile the whole queue.
    getattr(threading, "_register_atexit", atexit.register)(end)
    return pool


@functools.cache
def _workers() -> Workers:
    def tell(why: str) -> None:
        logger().warning("Triton's kernels are compiled by threads, which takes longer: %s", why)

    return Workers(as_many_as_here(), tell)


def start_early(kernel: Kernel, device: torch.device) -> None:
    """Starts building a kernel while its graph is still being compiled; `load_kernels` raises the
    compile errors."""
    if device.type == "cuda" and torch.cuda.is_initialized():  # not for an absent device
        with torch.cuda.device(device):
            start([kernel])


def start(kernels: Sequence[Kernel]) -> list[Future[Binary]]:
    """Starts building kernels for the current device, without waiting."""
    here = capability()
    result = [_known(kernel, here) for kernel in kernels]
    target = active_target() if None in result else None
    return [
        _start(kernel, target) if known is None else known
        for known, kernel in zip(result, kernels, strict=True)
    ]


def _known(kernel: Kernel, here: int) -> Future[Binary] | None:
    """Returns a kernel that is being built in this process, or that this or another process has
    built."""
    key = (kernel.key(), here)
    with _futures_lock:
        future = _futures.get(key)
    if future is not None and not (future.done() and future.exception() is not None):
        return future
    binary = _stored(kernel, here, aligned=True)
    if binary is None:
        return None
    with _futures_lock:
        future = _futures[key] = Future()
    future.set_result(binary)
    return future


#: Machine code that came with packages, by the kernel's key, the capability of the device that runs
#: it, and whether pointers are aligned.
_provided: dict[tuple[str, int, bool], Binary] = {}


def provide(key: str, capability: int, aligned: bool, binary: Binary) -> None:
    """Makes machine code known to `load_kernels`, which asks Triton for what is not."""
    _provided[key, capability, aligned] = binary


def _stored(kernel: Kernel, here: int, aligned: bool) -> Binary | None:
    """Returns the machine code of a kernel from a package or the kernel store, or None."""
    return _provided.get((kernel.key(), here, aligned)) or kernel_store.load(kernel, here, aligned)


def start_for(kernel: Kernel, target: Any, aligned: bool) -> Future[Binary]:
    """Starts building a kernel for a GPU that need not be here. aligned: see `kernel_store.load`."""
    if aligned:
        return _start(kernel, target)
    binary = kernel_store.load(kernel, target.arch, aligned)
    if binary is None:
        return _pool().submit(_binary, binary_of, kernel, target, aligned)
    future: Future[Binary] = Future()
    future.set_result(binary)
    return future


def _start(kernel: Kernel, target: Any) -> Future[Binary]:
    key = (kernel.key(), target.arch)
    with _futures_lock:
        future = _futures.get(key)
        if future is None or (future.done() and future.exception() is not None):
            _workers().announce()
            future = _futures[key] = _pool().submit(_binary, _workers().build, kernel, target)
        return future


def _binary(
    build: Callable[..., Binary], kernel: Kernel, target: Any, aligned: bool = True
) -> Binary:
    """Compiles a kernel with Triton and stores it."""
    try:
        result = build(kernel, target) if aligned else build(kernel, target, aligned)
    except NotCompiled as error:
        raise BackendError(
            "inductor", "triton", f"{error.detail}\nThe kernel:\n{error.text}"
        ) from error
    kernel_store.store(kernel, target.arch, result, aligned)
    return result
