"""From kernel texts to loaded kernels: Triton's compiler, in parallel, with its cache in our folder (`triton_ready`).

In: `Kernel` descriptions as generated modules hold them. Out: `LoadedKernel`s, or compiled binaries for a target that
is not there. What always holds: equal kernels of a process are compiled once; what Triton says of a kernel that it does
not compile is a BackendError with the kernel's text.
"""

from __future__ import annotations

import functools
import hashlib
import linecache
import os
import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor_backend.runtime import triton_ready
from inductor_backend.runtime.triton_interpreter import blocks_of_program, interpreting
from inductor_backend.runtime.triton_ready import active_target
from tracer_core.plugin_api import BackendError, logger


@dataclass(frozen=True)
class Kernel:
    """name: of the function in the text. pointers: their types (``*fp32``); sizes: number of int64 arguments after
    them. constants: block sizes. warps: of a program. stages: passes of a loop whose loads are under way at once. matrices:
    element type and block (rows, columns) of those that bulk copies read: arguments d0, d1, ... after the sizes."""

    name: str
    text: str
    pointers: Sequence[str]
    sizes: int
    constants: Mapping[str, int]
    warps: int
    stages: int = 1
    matrices: Sequence[tuple[str, int, int]] = ()

    def key(self) -> str:
        """Of what is compiled: the user's lines, in comments, are not."""
        constants = sorted(self.constants.items())
        parts = (
            self.name,
            re.sub(r"\A(?:#.*\n)+", "", self.text),
            *self.pointers,
            self.sizes,
            constants,
            self.warps,
            self.stages,
            *self.matrices,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@dataclass
class LoadedKernel:
    """function: the driver's handle. threads, shared: of a launch. pointers: how many of its parameters are. copies: what
    Triton says of the bulk copies from each matrix. interpreted: in their place, under Triton's interpreter. Mutable:
    `unaligned` is made when it is first needed."""

    kernel: Kernel
    device: torch.device
    function: int = 0
    threads: int = 0
    shared: int = 0
    compiled: Any = None
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
            self._unaligned = _load(
                compiled(self.kernel, active_target(), aligned=False),
                self.kernel,
                self.device,
                aligned=False,
            )
        return self._unaligned


def load_kernels(kernels: Sequence[Kernel], device: torch.device) -> list[LoadedKernel]:
    """All kernels of a module. Raises BackendError where Triton does not compile one."""
    if device.type != "cuda":
        if not interpreting():
            raise BackendError("inductor", "build", "Triton kernels on CPU tensors need TRITON_INTERPRET=1")
        return [LoadedKernel(kernel, device, interpreted=function_of(kernel)) for kernel in kernels]
    with torch.cuda.device(device):
        target = active_target()
        waiting = [_start(kernel, target) for kernel in kernels]
        results = [future.result() for future in waiting]
        return [_load(result, kernel, device) for kernel, result in zip(kernels, results, strict=True)]


def load_what_compiles(kernels: Sequence[Kernel], device: torch.device) -> list[LoadedKernel | BackendError]:
    """For each kernel itself, or why it cannot run on the device."""
    with torch.cuda.device(device):
        target = active_target()
        waiting = [_start(kernel, target) for kernel in kernels]
        found: list[LoadedKernel | BackendError] = []
        for kernel, future in zip(kernels, waiting, strict=True):
            try:
                found.append(_load(future.result(), kernel, device))
            except BackendError as error:
                found.append(error)
            except Exception as error:  # what the driver says of too many registers or too much shared memory
                found.append(BackendError("inductor", "build", f"{type(error).__name__}: {error}"))
        return found


def build_side_by_side(kernels: Sequence[Kernel], device: torch.device) -> None:
    """Builds all of them and waits; what one's compiler says is told where the kernel is loaded."""
    with torch.cuda.device(device):
        target = active_target()
    wait([_start(kernel, target) for kernel in kernels])


def _load(result: Any, kernel: Kernel, device: torch.device, aligned: bool = True) -> LoadedKernel:
    """On the current device. Triton's own loading would also build a launcher in C for each signature, 0.2 seconds each;
    `cuda_launch` launches ours."""
    from triton.runtime import driver  # heavy: triton

    metadata, utils = result.metadata, driver.active.utils
    if getattr(metadata, "global_scratch_size", 0):
        raise BackendError("inductor", "build", f"kernel {kernel.name} asks for global scratch memory")
    number = torch.cuda.current_device() if device.index is None else device.index
    most = utils.get_device_properties(number)["max_shared_mem"]
    if metadata.shared > most:
        detail = f"kernel {kernel.name} needs {metadata.shared} bytes of shared memory, {device} has {most}"
        raise BackendError("inductor", "build", detail)
    try:
        _, function, *facts = utils.load_binary(result.name, result.kernel, metadata.shared, number)
    except RuntimeError as error:  # the driver's
        detail = f"kernel {kernel.name} cannot be loaded: {error}{triton_ready.remedy(error)}"
        raise BackendError("inductor", "build", detail) from error
    threads = metadata.num_warps * 32
    if len(facts) > 2 and threads > facts[2]:  # registers, spills, most threads
        detail = f"kernel {kernel.name} has {threads} threads, its registers allow {facts[2]}"
        raise BackendError("inductor", "build", detail)
    copies = getattr(metadata, "tensordesc_meta", None) or ()
    if aligned and len(copies) != len(kernel.matrices):
        detail = (
            f"kernel {kernel.name}: Triton does not say how its {len(kernel.matrices)} matrices are copied"
        )
        raise BackendError("inductor", "build", detail)
    return LoadedKernel(kernel, device, function, threads, metadata.shared, result, copies)


@functools.cache
def warm_up() -> None:
    """Starts, on a thread, what every first kernel of a process waits for: imports, Triton's hash of itself, its driver
    and our launcher."""
    threading.Thread(target=_warm_up, name="triton-warm-up", daemon=True).start()


def _warm_up() -> None:
    from inductor_backend.runtime import cuda_launch  # imports this module

    waiting = [_pool().submit(cuda_launch.library)]
    try:
        from triton.runtime import cache  # heavy: triton

        if hasattr(cache, "triton_key"):
            waiting.append(_pool().submit(cache.triton_key))
        active_target()
        for one in waiting:
            one.result()
    except Exception as error:  # told where the kernel is built
        logger().debug("warming up Triton: %s: %s", type(error).__name__, error)


def target_of(capability: int) -> Any:
    """A target by its compute capability (80, 90, ...), for compiling without a GPU."""
    from triton.backends.compiler import GPUTarget  # heavy: triton

    return GPUTarget("cuda", capability, 32)


_futures: dict[tuple[str, Any], Future[Any]] = {}
_futures_lock = threading.Lock()


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2)), thread_name_prefix="triton")


def _start(kernel: Kernel, target: Any) -> Future[Any]:
    key = (kernel.key(), target)
    with _futures_lock:
        found = _futures.get(key)
        if found is None or (found.done() and found.exception() is not None):
            found = _futures[key] = _pool().submit(compiled, kernel, target)
        return found


def compiled(kernel: Kernel, target: Any, aligned: bool = True) -> Any:
    """Triton's CompiledKernel. aligned: pointers are multiples of 16 bytes."""
    import triton  # heavy: triton
    from triton.compiler import ASTSource

    names = [f"p{k}" for k in range(len(kernel.pointers))]
    signature = dict(zip(names, kernel.pointers, strict=True))
    signature |= {f"ks{k}": "i64" for k in range(kernel.sizes)}
    signature |= dict.fromkeys(kernel.constants, "constexpr")
    constants: dict[str, Any] = dict(kernel.constants)
    if kernel.matrices:
        matrices = {f"d{k}": form for k, form in enumerate(kernel.matrices)}
        if aligned:
            signature |= {n: f"tensordesc<{kind}[{y}, {x}]>" for n, (kind, y, x) in matrices.items()}
        else:
            signature |= dict.fromkeys(matrices, "constexpr")
            constants |= dict.fromkeys(matrices)
        signature["BULK"], constants["BULK"] = "constexpr", aligned
    attributes = {(k,): [["tt.divisibility", 16]] for k in range(len(names))} if aligned else {}
    source = ASTSource(function_of(kernel), signature, constants, attributes)
    try:
        return triton.compile(source, target=target, options=_options(kernel, target))
    except Exception as error:
        detail = f"Triton does not compile {kernel.name}: {type(error).__name__}: {error}{triton_ready.remedy(error)}"
        raise BackendError("inductor", "triton", f"{detail}\nThe kernel:\n{kernel.text}") from error


def _options(kernel: Kernel, target: Any) -> dict[str, Any]:
    from triton.backends.nvidia.compiler import CUDAOptions  # heavy: triton

    # Numbers too small for full precision stay numbers, as in eager; an index out of range stops the device.
    options = {
        "num_warps": kernel.warps,
        "num_stages": kernel.stages,
        "enable_reflect_ftz": False,
        "sanitize_overflow": False,
    }
    if "tl.device_assert" in kernel.text:
        options["debug"] = True
    known = CUDAOptions.__dataclass_fields__
    return {name: value for name, value in options.items() if name in known}


def function_of(kernel: Kernel) -> Any:
    """The kernel's text as a Triton function (interpreted under TRITON_INTERPRET=1)."""
    from inductor_backend.runtime import triton_device  # heavy: triton

    file, text = f"/inductor/triton/{kernel.name}_{kernel.key()}.py", kernel.text
    if interpreting():  # its loops want bounds that are Python's ints
        text = re.sub(r"\bks(\d+)(?=[,)])", r"ks\1: tl.constexpr", text, count=kernel.sizes)
        text = re.sub(r"tl\.range\(tl\.program_id\(0\), blocks,.*\):", "blocks_of_program(blocks):", text)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {name: getattr(triton_device, name) for name in triton_device.__all__}
    namespace |= {"__name__": "inductor_triton", "blocks_of_program": blocks_of_program}
    exec(compile(text, file, "exec"), namespace)
    return namespace[kernel.name]
