"""The interface to a device that can capture and replay its work, and its implementation for CUDA.

`CudaDevice.capture` either captures everything that the function launched, or raises and leaves
streams, allocator and random number generators as they were."""

from __future__ import annotations

import contextlib
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from cudagraphs_backend import pool_assignment, torch_private
from cudagraphs_backend.collectives import CollectivesBetween

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """host: seconds that one run took on the host. device: returns the seconds between the events
    before and after the run, None where the device has not finished it."""

    host: float
    device: Callable[[], float | None]


class Graph(Protocol):
    """A captured graph. replay: runs it again on the current stream. reset: frees it."""

    def replay(self) -> None: ...

    def reset(self) -> None: ...


class Device(Protocol):
    """A device that can capture. current_stream: the raw handle of the caller's stream. capturing:
    whether the current stream is being captured. wait_for_stream: makes the current stream wait for
    all work that was given to `stream` (from `stream_object`) so far. new_pool: a memory pool for
    captures. capture: see `CudaDevice.capture`. lie_in_pool: whether tensors were allocated in a
    pool. reserved_bytes: memory taken from the device; total_bytes: its size; free_bytes: what
    nobody uses now. timed: see `Timing`."""

    def current_stream(self) -> int: ...

    def stream_object(self) -> Any: ...

    def wait_for_stream(self, stream: Any) -> None: ...

    def capturing(self) -> bool: ...

    def new_pool(self) -> Any: ...

    def capture(
        self,
        body: Callable[[], T],
        pool: Any,
        generators: Sequence[torch.Generator],
        scratch: Any = None,
        communicates: bool = False,
    ) -> tuple[Graph, T]: ...

    def lie_in_pool(self, tensors: Sequence[torch.Tensor], pool: Any) -> bool: ...

    def synchronize(self) -> None: ...

    def reserved_bytes(self) -> int: ...

    def total_bytes(self) -> int: ...

    def free_bytes(self) -> int: ...

    def timed(self, body: Callable[[], T]) -> tuple[T, Timing]: ...

    def give_back_memory(self) -> None: ...


class CudaRouter:
    """Mutable: which of two pools a capture allocates from."""

    def __init__(self, device: int, results: Any, scratch: Any) -> None:
        self._device, self._results, self._scratch = device, results, scratch
        self._current = results

    def around(self, between: Callable[[Callable[[], object]], None]) -> Callable[..., None]:
        """Returns `between`, called while the pool of results is chosen: a capture begins and ends
        there."""

        def routed(call: Callable[[], object]) -> None:
            current = self._current
            self._go(self._results)
            between(call)
            self._go(current)

        return routed

    def to_results(self) -> None:
        self._go(self._results)

    def to_scratch(self) -> None:
        self._go(self._scratch)

    def _go(self, pool: Any) -> None:
        if pool is not self._current:
            torch_private.switch_pool(self._device, self._current, pool)
            self._current = pool


class Parts:
    """Mutable: captured CUDA graphs, and what the host does between two of them."""

    def __init__(self, pool: Any, generators: Sequence[torch.Generator]) -> None:
        self._pool, self._generators = pool, generators
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._steps: list[Callable[[], object]] = []
        self._capturing = False

    def begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._graphs.append(graph)
        self._capturing = True

    def end(self) -> None:
        """Ends the capture. A part in which nothing was launched, of which torch warns, is left out."""
        self._capturing = False
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self._graphs[-1].capture_end()
        empty = [line for line in said if "graph is empty" in str(line.message).lower()]
        for line in said:
            if line not in empty:
                warnings.warn_explicit(line.message, line.category, line.filename, line.lineno)
        if not empty:
            self._steps.append(self._graphs[-1].replay)

    def stop(self) -> None:
        """Ends a capture that failed: this error would hide the reason."""
        if self._capturing:
            self._capturing = False
            with contextlib.suppress(RuntimeError):
                self._graphs[-1].capture_end()

    def between(self, call: Callable[[], object]) -> None:
        """Has the host do something between what was captured so far and what comes."""
        self.end()
        self._steps.append(call)
        self.begin()

    def replay(self) -> None:
        for step in self._steps:
            step()

    def reset(self) -> None:
        self._steps.clear()
        while self._graphs:
            self._graphs.pop().reset()

    def drop(self) -> None:
        """Forgets the CUDA graphs of a capture that failed, of which some may never have ended."""
        self._steps.clear()
        self._graphs.clear()


class CudaDevice:
    """One CUDA device."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._side = torch.cuda.Stream(index)

    def current_stream(self) -> int:
        return torch_private.current_raw_stream(self.index)

    def stream_object(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.index)

    def wait_for_stream(self, stream: torch.cuda.Stream) -> None:
        torch.cuda.current_stream(self.index).wait_stream(stream)

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(
        self,
        body: Callable[[], T],
        pool: Any,
        generators: Sequence[torch.Generator],
        scratch: Any = None,
        communicates: bool = False,
    ) -> tuple[Graph, T]:
        """Captures what `body` launches, on a side stream, with memory from `pool`; nothing is
        executed. generators: those that body uses beside the default one. scratch: a pool for what
        body does not place (`pool_assignment`); None: all memory comes from `pool`. communicates:
        body may issue collectives (`collectives`). Raises what body raises, or RuntimeError for
        what cannot be captured (a synchronisation, a copy from pageable memory)."""
        parts = Parts(pool, generators)
        torch.cuda.synchronize(self.index)
        try:
            with self._quiet():
                result = self._record(parts, body, pool, scratch, communicates)
        except BaseException:
            self._recover(parts, pool)
            raise
        return parts, result

    def _record(
        self,
        parts: Parts,
        body: Callable[[], T],
        pool: Any,
        scratch: Any = None,
        communicates: bool = False,
    ) -> T:
        parts.begin()
        try:
            router = None
            with contextlib.ExitStack() as around:
                if scratch is not None and torch_private.can_switch_pools():
                    router = CudaRouter(self.index, pool, scratch)
                    around.enter_context(pool_assignment.routed(router))
                if communicates:
                    between = parts.between if router is None else router.around(parts.between)
                    around.enter_context(CollectivesBetween(between))
                result = body()
        except BaseException:
            parts.stop()
            raise
        parts.end()
        return result

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Switches to the side stream, without garbage collection (destroying events or graphs is
        an error during a capture) and with cuBLAS workspaces that belong to this capture alone."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.device(self.index), torch.cuda.stream(self._side):
                torch_private.drop_cublas_workspaces()
                yield
        finally:
            torch_private.drop_cublas_workspaces()
            if collecting:
                gc.enable()

    def _recover(self, parts: Parts, pool: Any) -> None:
        """Restores torch after a failed capture: the allocator still routes to the pool, and the
        default generator still believes that it is being captured, which a successful capture of
        one small kernel ends."""
        torch_private.stop_allocating(self.index, pool)
        parts.drop()
        torch.cuda.synchronize(self.index)
        with self._quiet():
            item = torch.zeros(1, device=torch.device("cuda", self.index))
            own = torch.cuda.graph_pool_handle()
            self._record(Parts(own, ()), lambda: item.add_(1), own)
        torch.cuda.synchronize(self.index)

    def lie_in_pool(self, tensors: Sequence[torch.Tensor], pool: Any) -> bool:
        return torch_private.lie_in_pool(tensors, pool)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def reserved_bytes(self) -> int:
        return torch.cuda.memory_reserved(self.index)

    def total_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self.index).total_memory)

    def free_bytes(self) -> int:
        """Returns the device's free bytes plus those that the allocator caches."""
        free, _ = torch.cuda.mem_get_info(self.index)
        return (
            int(free)
            + torch.cuda.memory_reserved(self.index)
            - torch.cuda.memory_allocated(self.index)
        )

    def timed(self, body: Callable[[], T]) -> tuple[T, Timing]:
        """Runs body between two CUDA events, without waiting for them."""
        stream = torch.cuda.current_stream(self.index)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(stream)
        started = time.perf_counter()
        result = body()
        seconds = time.perf_counter() - started
        last.record(stream)

        def elapsed() -> float | None:
            return first.elapsed_time(last) / 1e3 if last.query() else None

        return result, Timing(seconds, elapsed)

    def give_back_memory(self) -> None:
        torch.cuda.empty_cache()
