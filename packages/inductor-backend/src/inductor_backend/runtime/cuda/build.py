"""From kernel texts to loaded kernels: what is kept (`triton_kept`), else Triton's compiler, in
parallel.

In: `Kernel` descriptions as generated modules hold them. Out: `LoadedKernel`s. What always holds:
equal kernels of a process are compiled once; Triton is imported only where a kernel is not kept;
what it says of a kernel that it does not compile is a BackendError with the kernel's text.
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
    parameters are. copies: what Triton says of the bulk copies from each matrix. interpreted: in
    their place, under Triton's interpreter. Mutable: `unaligned` is made when it is first needed.
    """

    kernel: Kernel
    device: torch.device
    function: int = 0
    threads: int = 0
    shared: int = 0
    copies: Sequence[Mapping[str, Any]] = ()
    interpreted: Any = None
    _unaligned: LoadedKernel | None = field(default=None, repr=False)

    @property
    def pointers(self) -> int:
        return len(self.kernel.pointers)

    @property
    def constants(self) -> Mapping[str, int]:
        return self.kernel.constants

    def unaligned(self) -> LoadedKernel:
        """The same kernel for pointers of any alignment."""
        if self._unaligned is None:
            here = capability(
                self.device.index
            )  # asked in the middle of a run: the current device stays as it is
            found = kernel_store.load(self.kernel, here, aligned=False)
            if found is None:
                found = _binary(binary_of, self.kernel, target_of(here), False)
            self._unaligned = _load(found, self.kernel, self.device, aligned=False)
        return self._unaligned


def load_kernels(kernels: Sequence[Kernel], device: torch.device) -> list[LoadedKernel]:
    """All kernels of a module. Raises BackendError where Triton does not compile one."""
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


def load_what_compiles(
    kernels: Sequence[Kernel], device: torch.device
) -> list[LoadedKernel | BackendError]:
    """For each kernel itself, or why it cannot run on the device."""
    with torch.cuda.device(device):
        waiting = start(kernels)
        found: list[LoadedKernel | BackendError] = []
        for kernel, future in zip(kernels, waiting, strict=True):
            try:
                found.append(_load(future.result(), kernel, device))
            except BackendError as error:
                found.append(error)
            except (
                Exception
            ) as error:  # what the driver says of too many registers or too much shared memory
                found.append(BackendError("inductor", "build", f"{type(error).__name__}: {error}"))
        return found


def build_side_by_side(kernels: Sequence[Kernel], device: torch.device) -> None:
    """Builds all of them and waits; what one's compiler says is told where the kernel is loaded."""
    with torch.cuda.device(device):
        waiting = start(kernels)
    wait(waiting)


def _load(
    found: Binary, kernel: Kernel, device: torch.device, aligned: bool = True
) -> LoadedKernel:
    """On the current device."""
    if found.scratch:
        raise BackendError(
            "inductor", "build", f"kernel {kernel.name} asks for global scratch memory"
        )
    number = torch.cuda.current_device() if device.index is None else device.index
    most: int = torch.cuda.get_device_properties(number).shared_memory_per_block_optin  # type: ignore[attr-defined]
    if found.shared > most:
        detail = (
            f"kernel {kernel.name} needs {found.shared} bytes of shared memory, {device} has {most}"
        )
        raise BackendError("inductor", "build", detail)
    try:
        function, most_threads = driver.load(found.name, found.code, found.shared, most, number)
    except RuntimeError as error:  # the driver's
        detail = f"kernel {kernel.name} cannot be loaded: {error}{remedy(error)}"
        raise BackendError("inductor", "build", detail) from error
    threads = found.warps * 32
    if threads > most_threads:
        detail = f"kernel {kernel.name} has {threads} threads, its registers allow {most_threads}"
        raise BackendError("inductor", "build", detail)
    if aligned and len(found.copies) != len(kernel.matrices):
        detail = (
            f"kernel {kernel.name}: Triton does not say how its {len(kernel.matrices)} matrices are"
            " copied"
        )
        raise BackendError("inductor", "build", detail)
    return LoadedKernel(kernel, device, function, threads, found.shared, found.copies)


@functools.cache
def warm_up() -> None:
    """Starts, on a thread, what every first kernel of a process waits for: our launcher, and, where
    no kernel of an earlier process is kept, imports, Triton's hash of itself and its driver."""
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
        for one in waiting:
            one.result()
    except Exception as error:  # told where the kernel is built
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

    # Before Python waits for the pool's threads: an interrupted program would compile all that
    # waits.
    getattr(threading, "_register_atexit", atexit.register)(end)
    return pool


@functools.cache
def _workers() -> Workers:
    def tell(why: str) -> None:
        logger().warning("Triton's kernels are compiled by threads, which takes longer: %s", why)

    return Workers(as_many_as_here(), tell)


def start_early(kernel: Kernel, device: torch.device) -> None:
    """Has it built while its graph is still being compiled; `load_kernels` tells what its compiler
    says.
    """
    if device.type == "cuda" and torch.cuda.is_initialized():  # not for a device that is not there
        with torch.cuda.device(device):
            start([kernel])


def start(kernels: Sequence[Kernel]) -> list[Future[Binary]]:
    """Has them built for the current device, without waiting."""
    here = capability()
    found = [_known(kernel, here) for kernel in kernels]
    target = active_target() if None in found else None
    return [
        _start(kernel, target) if known is None else known
        for known, kernel in zip(found, kernels, strict=True)
    ]


def _known(kernel: Kernel, here: int) -> Future[Binary] | None:
    """A kernel that is being built in this process, or was before, or by another one."""
    key = (kernel.key(), here)
    with _futures_lock:
        found = _futures.get(key)
    if found is not None and not (found.done() and found.exception() is not None):
        return found
    kept = kernel_store.load(kernel, here)
    if kept is None:
        return None
    with _futures_lock:
        found = _futures[key] = Future()
    found.set_result(kept)
    return found


def _start(kernel: Kernel, target: Any) -> Future[Binary]:
    key = (kernel.key(), target.arch)
    with _futures_lock:
        found = _futures.get(key)
        if found is None or (found.done() and found.exception() is not None):
            _workers().announce()
            found = _futures[key] = _pool().submit(_binary, _workers().build, kernel, target)
        return found


def _binary(
    build: Callable[..., Binary], kernel: Kernel, target: Any, aligned: bool = True
) -> Binary:
    """By Triton, and kept."""
    try:
        found = build(kernel, target) if aligned else build(kernel, target, aligned)
    except NotCompiled as error:
        raise BackendError(
            "inductor", "triton", f"{error.detail}\nThe kernel:\n{error.text}"
        ) from error
    kernel_store.store(kernel, target.arch, found, aligned)
    return found
