"""What the CUDA graphs of one device share: a lock, the order of replays, a memory pool and a
budget.

CUDA graphs that share the pool are replayed one after the other, on different streams too. Only a
thread that holds the lock replays. CUDA graphs beyond the budget are thrown away, least recently
used first."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

from cudagraphs_backend.device import CudaDevice, Device, Graph
from cudagraphs_backend.options import CudaGraphsOptions

T = TypeVar("T")

#: A stream: its raw handle, and what `Device.wait_for_stream` takes.
Where = tuple[int, Any]


class Member(Protocol):
    """What the budget knows of a captured CUDA graph. used: tick of the last replay. nbytes: its
    memory."""

    used: int
    nbytes: int

    def close(self) -> None: ...


class DeviceState:
    """Mutable. members: the captured CUDA graphs that are alive, by weak reference; their runners
    own them."""

    def __init__(self, device: Device, where: torch.device) -> None:
        self.device, self.where = device, where
        self.lock = threading.RLock()
        self._members: dict[int, weakref.ref[Member]] = {}
        self._thrown: list[tuple[Graph, Any]] = []
        self.ticks = itertools.count(1)
        self._shared: tuple[Any, Graph] | None = None
        self._last: Where | None = None

    def add(self, member: Member) -> None:
        self._members[id(member)] = weakref.ref(member)

    @property
    def members(self) -> list[Member]:
        """Returns the live members as a new list: finalizers remove members at any time."""
        result = [reference() for reference in list(self._members.values())]
        return [item for item in result if item is not None]

    def discard(self, member: Member, graph: Graph, memory: Any) -> None:
        """Frees a CUDA graph, then its memory. Finalizers call this in any thread; while a capture
        runs, no CUDA graph may be destroyed and nothing may wait for the device, so freeing waits
        for its end."""
        self._members.pop(id(member), None)
        self._thrown.append((graph, memory))
        self._empty()

    def _empty(self) -> None:
        if not self._thrown or self.device.capturing() or not self.lock.acquire(blocking=False):
            return
        try:
            self.device.synchronize()  # their replays may still run
            while self._thrown:
                self._thrown.pop()[0].reset()
            if not self._members:
                self._shared = None  # a capture that is under way holds its own reference
        finally:
            self.lock.release()

    def order(self, earlier: Where | None = None) -> Where:
        """Makes a replay on the current stream wait for the one before it, if that ran on another
        stream. earlier: another stream to wait for. Returns the current stream: the same object
        until the stream changes."""
        self._empty()
        last = self._last
        stream = self.device.current_stream()
        if last is None or stream != last[0]:
            if last is not None:
                self.device.wait_for_stream(last[1])
            self._last = stream, self.device.stream_object()
        now = self._last
        assert now is not None
        if earlier is not None and earlier is not now and earlier[0] != stream:
            self.device.wait_for_stream(earlier[1])
        return now

    def shared_pool(self) -> tuple[Any, Graph]:
        """Returns the pool for memory that holds no results after a replay, and a minimal CUDA
        graph that keeps the pool alive. Whoever captures into the pool holds that CUDA graph: the
        allocator frees a pool with its last graph."""
        shared = self._shared
        if shared is None:
            pool = self.device.new_pool()
            anchor, _ = self.device.capture(lambda: torch.zeros(1, device=self.where), pool, ())
            shared = self._shared = pool, anchor
        return shared

    def record(
        self,
        body: Callable[[], T],
        pool: Any,
        generators: Sequence[torch.Generator],
        scratch: Any = None,
        communicates: bool = False,
    ) -> tuple[Graph, T, int]:
        """Captures `body`; returns the CUDA graph, body's result, and the bytes reserved for it."""
        self._empty()
        self.device.give_back_memory()  # captures cannot use the blocks that plain runs left cached
        before = self.device.reserved_bytes()
        try:
            graph, result = self.device.capture(body, pool, generators, scratch, communicates)
        except BaseException:
            self._retire(pool)
            self._retire(scratch)
            raise
        return graph, result, max(self.device.reserved_bytes() - before, 0)

    def _retire(self, pool: Any) -> None:
        """Stops using a shared pool in which a capture failed: torch 2.11 believes that the capture
        still runs. CUDA graphs in the pool keep it alive."""
        if self._shared is not None and self._shared[0] is pool:
            self._shared = None

    def held_bytes(self) -> int:
        """Returns the bytes that all CUDA graphs hold."""
        return sum(member.nbytes for member in self.members)

    def admit(self, newest: Member, options: CudaGraphsOptions) -> None:
        """Throws away the least recently used CUDA graphs until count and memory fit, but never the
        newest."""
        limit = self.limit(options)
        others = sorted(
            (member for member in self.members if member is not newest),
            key=lambda member: member.used,
        )
        thrown = False
        while others and (len(others) + 1 > options.recordings or self.held_bytes() > limit):
            others.pop(0).close()
            thrown = True
        if thrown:
            self.device.give_back_memory()

    def limit(self, options: CudaGraphsOptions) -> int:
        """Returns the bytes that CUDA graphs may hold."""
        mib = options.memory_mib
        return self.device.total_bytes() // 3 if mib is None else mib * 2**20

    def make_room(self) -> None:
        """Throws every CUDA graph away and frees its memory, except that of results which are still
        alive."""
        with self.lock:
            self.device.synchronize()
            for member in self.members:
                member.close()
            self._empty()
            self.device.give_back_memory()

    def clear(self) -> None:
        """Throws away every CUDA graph and the shared pool."""
        with self.lock:
            self.make_room()
            if self._shared is not None:
                self._shared[1].reset()
            self._shared = None
            self._last = None
            self.device.give_back_memory()


class States:
    """Mutable: the state of each device, made when first asked for. `install` puts in other
    implementations (for tests)."""

    def __init__(self) -> None:
        self._states: dict[torch.device, DeviceState] = {}
        self._making = threading.Lock()

    def of(self, device: torch.device) -> DeviceState | None:
        """Returns the state of a device, or None if the device cannot capture."""
        key = indexed(device)
        with self._making:
            if key not in self._states:
                if key.type != "cuda":
                    return None
                self._states[key] = DeviceState(CudaDevice(key.index), key)
            return self._states[key]

    def records(self, kind: str) -> bool:
        """Returns whether devices of this type can capture."""
        return kind == "cuda" or any(device.type == kind for device in self._states)

    def install(self, device: torch.device, implementation: Device) -> Callable[[], None]:
        """Has `implementation` stand for a device; returns a function that undoes it."""
        key = indexed(device)
        self._states[key] = DeviceState(implementation, key)
        return lambda: self._states.pop(key).clear()

    def clear(self) -> None:
        """Throws every CUDA graph away."""
        for state in tuple(self._states.values()):
            state.clear()


def indexed(device: torch.device) -> torch.device:
    """Returns the device with its index."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


states = States()
