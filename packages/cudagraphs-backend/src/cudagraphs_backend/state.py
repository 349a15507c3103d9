"""What the recordings of one device share: a lock, the order of replays, the pool, and a budget.

In: a `Device`. Out: a `DeviceState`, one a device, and `states` to find it. What always holds: recordings that
share the pool are replayed one after the other, also on different streams; a recording is only replayed by a thread
that holds the lock; recordings beyond the budget are thrown away, least recently used first.
"""

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


class Member(Protocol):
    """What the budget knows of a recording. used: when it was last replayed, as a count. nbytes: what it holds."""

    used: int
    nbytes: int

    def close(self) -> None: ...


class DeviceState:
    """Mutable. members: the recordings that are alive (their owners are the graphs that they were made for)."""

    def __init__(self, device: Device, where: torch.device) -> None:
        self.device, self.where = device, where
        self.lock = threading.RLock()
        self.members: weakref.WeakSet[Any] = weakref.WeakSet()
        self.ticks = itertools.count(1)
        self._shared: tuple[Any, Graph] | None = None
        self._last: int | None = None
        self._last_stream: Any = None

    def order(self) -> None:
        """Makes a replay on the current stream wait for the one before it, if that was on another stream."""
        stream = self.device.current_stream()
        if stream != self._last:
            if self._last_stream is not None:
                self.device.wait_for_stream(self._last_stream)
            self._last, self._last_stream = stream, self.device.stream_object()

    def shared_pool(self) -> Any:
        """The pool of the recordings that leave nothing in it after a replay. A recording of next to nothing keeps
        it alive while there is no other."""
        if self._shared is None:
            pool = self.device.new_pool()
            anchor, _ = self.device.capture(lambda: torch.zeros(1, device=self.where), pool, ())
            self._shared = pool, anchor
        return self._shared[0]

    def record(
        self, body: Callable[[], T], pool: Any, generators: Sequence[torch.Generator], scratch: Any = None
    ) -> tuple[Graph, T, int]:
        """A recording of `body`, its result, and how much memory was taken for it."""
        self.device.give_back_memory()  # what plain runs left behind would not be used again
        before = self.device.reserved_bytes()
        try:
            graph, result = self.device.capture(body, pool, generators, scratch)
        except BaseException:
            self._retire(pool)
            self._retire(scratch)
            raise
        return graph, result, max(self.device.reserved_bytes() - before, 0)

    def _retire(self, pool: Any) -> None:
        """A pool in which a capture failed takes no other one: torch 2.11 believes that it is still recorded to.
        Recordings that are in it keep it alive themselves."""
        if self._shared is not None and self._shared[0] is pool:
            self._shared[1].reset()
            self._shared = None

    def held_bytes(self) -> int:
        """What all recordings hold."""
        return sum(member.nbytes for member in self.members)

    def admit(self, newest: Member, options: CudaGraphsOptions) -> None:
        """Throws away the least recently used recordings until count and memory fit, but never the newest."""
        limit = self.limit(options)
        others = sorted((one for one in self.members if one is not newest), key=lambda one: one.used)
        thrown = False
        while others and (len(others) + 1 > options.recordings or self.held_bytes() > limit):
            others.pop(0).close()
            thrown = True
        if thrown:
            self.device.give_back_memory()

    def limit(self, options: CudaGraphsOptions) -> int:
        """The bytes that recordings may hold."""
        mib = options.memory_mib
        return self.device.total_bytes() // 3 if mib is None else mib * 2**20

    def clear(self) -> None:
        """Throws every recording away and gives the memory back."""
        with self.lock:
            self.device.synchronize()
            for member in list(self.members):
                member.close()
            if self._shared is not None:
                self._shared[1].reset()
            self._shared = None
            self._last = self._last_stream = None
            self.device.give_back_memory()


class States:
    """Mutable: the state of each device, made when it is first asked for. Devices of other kinds can be put in by
    `install` (the tests' stand-in)."""

    def __init__(self) -> None:
        self._states: dict[torch.device, DeviceState] = {}
        self._making = threading.Lock()

    def of(self, device: torch.device) -> DeviceState | None:
        """The state of a device, or None if it cannot record."""
        key = indexed(device)
        with self._making:
            if key not in self._states:
                if key.type != "cuda":
                    return None
                self._states[key] = DeviceState(CudaDevice(key.index), key)
            return self._states[key]

    def records(self, kind: str) -> bool:
        """Whether devices of this type can record."""
        return kind == "cuda" or any(device.type == kind for device in self._states)

    def install(self, device: torch.device, implementation: Device) -> Callable[[], None]:
        """Has `implementation` stand for a device; returns what undoes it."""
        key = indexed(device)
        self._states[key] = DeviceState(implementation, key)
        return lambda: self._states.pop(key).clear()

    def clear(self) -> None:
        """Throws every recording away."""
        for state in tuple(self._states.values()):
            state.clear()


def indexed(device: torch.device) -> torch.device:
    """The device with its number."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


states = States()
