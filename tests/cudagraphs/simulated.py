"""A device that records, made of CPU tensors: what CUDA graphs do to memory, where there is no GPU.

A capture runs nothing: results are poison. Its operators allocate from a pool, first fit over
blocks that nobody holds, so that later recordings really use the memory of earlier ones. A replay
writes its results to the addresses of the capture, whoever looks at them by then. Reading a value
back during a capture is an error, as it is in CUDA. Replays of one pool on two streams without a
wait between them, and two threads inside a replay, are errors too.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from cudagraphs_backend.collectives import CollectivesBetween
from cudagraphs_backend.device import Timing
from cudagraphs_backend.pool_assignment import routed

aten = torch.ops.aten

#: Operators that wait for the device.
WAITS = frozenset(
    {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}
)


#: The tests' own.
CUSTOM_WAITS = frozenset({"graphtests.reads.default"})


#: Hazards of this process: the core runs a program plainly whose graph raised, so raising alone may
#: pass unseen.
HAZARDS: list[str] = []


class HazardError(AssertionError):
    """What would be a wrong result or undefined behaviour on a real device."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        HAZARDS.append(what)


class Pool:
    """Blocks that captures allocate from. Storages of handed tensors alias the blocks, so each
    block keeps weak references to the storages that were made on it."""

    def __init__(self) -> None:
        self.blocks: list[tuple[torch.Tensor, list[Any]]] = []
        self.last: tuple[int, int] | None = (
            None  # stream, and how much it had been given after the last replay
        )
        self.busy = self.tainted = False
        # that were recorded in it and are alive: without any, the allocator takes its memory back
        self.graphs = 0

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        span = (
            sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True)) + 1
            if like.numel()
            else 0
        )
        nbytes = max((span * like.element_size() + 511) // 512 * 512, 512)
        for memory, tenants in self.blocks:
            if memory.numel() >= nbytes and not any(self._alive(tenant) for tenant in tenants):
                tenants.clear()
                return self._on(memory, tenants, like)
        memory = torch.empty(nbytes, dtype=torch.uint8)
        tenants: list[Any] = []
        self.blocks.append((memory, tenants))
        return self._on(memory, tenants, like)

    def holds(self, tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(0 <= address - memory.data_ptr() < memory.numel() for memory, _ in self.blocks)

    @staticmethod
    def _alive(reference: int) -> bool:
        return not torch.UntypedStorage._expired(reference)

    @staticmethod
    def _on(memory: torch.Tensor, tenants: list[Any], like: torch.Tensor) -> torch.Tensor:
        """A tensor with a storage object of its own over a block, as an allocator hands out."""
        flat = torch.from_numpy(memory.numpy())  # another storage, the same bytes
        tenants.append(flat.untyped_storage()._weak_ref())
        result = torch.empty(0, dtype=like.dtype)
        result.set_(flat.untyped_storage(), 0, like.shape, like.stride())
        return result

    @property
    def nbytes(self) -> int:
        return sum(memory.numel() for memory, _ in self.blocks)


def by_address(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor at the same address that keeps nothing alive: recorded work only knows addresses."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    span = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    memory = (ctypes.c_char * (span * tensor.element_size())).from_address(tensor.data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def poison(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        tensor.fill_(float("nan"))
    elif tensor.numel():
        tensor.fill_(1)


class Capture(TorchDispatchMode):
    """Writes down what is called, with results in the pool."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.steps: list[tuple[Any, Any, Any, list[torch.Tensor | None]]] = []
        self.host_calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in WAITS or str(func) in CUSTOM_WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        _cdatas = {
            item.untyped_storage()._cdata
            for item in tree_flatten((args, kwargs))[0]
            if _is_tensor(item)
        }
        if any(
            argument.alias_info is not None and argument.alias_info.is_write
            for argument in func._schema.arguments
        ):
            self._write_down(func, args, kwargs, [])  # writes happen at replay
            return self._written(func, args, kwargs)
        with _random_kept():
            result = func(*args, **kwargs)
        flat = tree_flatten(result)[0]
        if any(_is_tensor(leaf) and leaf.untyped_storage()._cdata in _cdatas for leaf in flat):
            return result  # a view: it launches nothing
        created: dict[int, torch.Tensor] = {}
        for leaf in flat:
            if _is_tensor(leaf):
                created[id(leaf)] = self.pool.allocate(leaf)
                poison(created[id(leaf)])
        self._write_down(func, args, kwargs, [created.get(id(leaf)) for leaf in flat])
        return tree_map_only(torch.Tensor, lambda leaf: created[id(leaf)], result)

    def between(self, call: Callable[[], None]) -> None:
        self.steps.append((call, (), {}, []))
        self.host_calls += 1

    def _write_down(self, func: Any, args: Any, kwargs: Any, places: list[Any]) -> None:
        args, kwargs, places = tree_map_only(torch.Tensor, by_address, (args, kwargs, places))
        self.steps.append((func, args, kwargs, places))

    @staticmethod
    def _written(func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator that writes to an argument returns: that argument."""
        returns = func._schema.returns
        if len(returns) != 1:
            raise RuntimeError(f"the simulation does not know {func}")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                return value
        return kwargs.get("out")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@contextlib.contextmanager
def _random_kept():
    """A capture draws no random numbers."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


class Router:
    """Switches a capture between two pools."""

    def __init__(self, recorder: Capture, results: Pool, scratch: Pool) -> None:
        self.recorder, self.pools = recorder, (results, scratch)

    def to_results(self) -> None:
        self.recorder.pool = self.pools[0]

    def to_scratch(self) -> None:
        self.recorder.pool = self.pools[1]


class SimulatedGraph:
    def __init__(self, device: SimulatedDevice, pools: list[Pool], steps: list[Any]) -> None:
        self.device, self.pools, self.steps = device, pools, steps
        self.replays = 0
        self.stream: int | None = None  # of the replay before
        self.pools[
            0
        ].graphs += 1  # of a second one, scratch memory, the allocator does not know that the graph needs it

    def replay(self) -> None:
        if self.steps is None:
            raise HazardError("a graph that was reset is replayed")
        if not all(pool.graphs for pool in self.pools):
            raise HazardError("a replay writes to a pool that was given back")
        stream, clocks = self.device.current_stream(), self.device.clocks
        clocks[stream][stream] += 1
        for pool in self.pools:
            if pool.busy:
                raise HazardError("two threads replay recordings of one pool")
            if pool.last is not None and clocks[stream][pool.last[0]] < pool.last[1]:
                raise HazardError("a replay does not wait for the one before it, on another stream")
        if (
            len(self.pools) > 1
        ):  # results that were read on that stream lie apart from scratch memory
            if (
                self.stream is not None
                and clocks[stream][self.stream] < clocks[self.stream][self.stream]
            ):
                raise HazardError(
                    "a replay does not wait for what read its results before, on another stream"
                )
            self.stream = stream
        for pool in self.pools:
            pool.busy, pool.last = True, (stream, clocks[stream][stream])
        try:
            time.sleep(self.device.delay)
            with torch.no_grad():
                for func, args, kwargs, places in self.steps:
                    results = tree_flatten(func(*args, **kwargs))[0]
                    for place, value in zip(places, results, strict=False):
                        if place is not None:
                            place.copy_(value)
        finally:
            for pool in self.pools:
                pool.busy = False
        self.replays += 1
        self.device.replays += 1

    def reset(self) -> None:
        if self.device.recording:
            raise HazardError("a graph is destroyed during a capture")
        self._let_go()

    def _let_go(self) -> None:
        self.pools[0].graphs -= self.steps is not None
        self.steps = None

    def __del__(self) -> None:
        self._let_go()


class SimulatedDevice:
    """Mutable: counts of captures and replays, the stream of each thread. clocks: for each stream,
    how much of what each stream was given is done before what it is given next."""

    def __init__(self) -> None:
        self.captures = self.replays = self.given_back = 0
        self.recording = False  # in any thread
        self.clocks: dict[int, Counter[int]] = defaultdict(Counter)
        self.delay = 0.0
        self.pools: list[Pool] = []
        self.memory = self.free = 1 << 40
        self.seconds: tuple[float, float | None] = (
            1e-3,
            1e-3,
        )  # of the host and the device, of a timed run
        self._local = threading.local()

    # what the mechanism asks
    # -----------------------------------------------------------------------------

    def current_stream(self) -> int:
        return getattr(self._local, "stream", 0)

    def stream_object(self) -> int:
        return self.current_stream()

    def wait_for_stream(self, stream: int) -> None:
        mine = self.clocks[self.current_stream()]
        mine |= self.clocks[stream]  # the larger of both

    def capturing(self) -> bool:
        return getattr(self._local, "capturing", False)

    def new_pool(self) -> Pool:
        self.pools.append(Pool())
        return self.pools[-1]

    def capture(
        self,
        body: Callable[[], Any],
        pool: Pool,
        generators: Sequence[torch.Generator],
        scratch: Pool | None = None,
        communicates: bool = False,
    ) -> tuple[SimulatedGraph, Any]:
        if self.capturing():
            raise HazardError("a capture inside a capture")
        if pool.tainted or (scratch is not None and scratch.tainted):
            raise HazardError("a capture in a pool in which one failed")
        recorder = Capture(pool)
        self._local.capturing = self.recording = True
        try:
            with (
                contextlib.nullcontext()
                if scratch is None
                else routed(Router(recorder, pool, scratch))
            ):
                with recorder:
                    with (
                        CollectivesBetween(recorder.between)
                        if communicates
                        else contextlib.nullcontext()
                    ):
                        result = body()
        except BaseException:
            pool.tainted = True
            if scratch is not None:
                scratch.tainted = True
            raise
        finally:
            self._local.capturing = self.recording = False
        self.captures += 1
        return SimulatedGraph(
            self, [value for value in (pool, scratch) if value is not None], recorder.steps
        ), result

    def lie_in_pool(self, tensors: Sequence[torch.Tensor], pool: Pool) -> bool:
        return all(pool.holds(tensor) for tensor in tensors)

    def synchronize(self) -> None:
        if self.recording:
            raise HazardError("synchronised during a capture")

    def reserved_bytes(self) -> int:
        return sum(pool.nbytes for pool in self.pools)

    def total_bytes(self) -> int:
        return self.memory

    def free_bytes(self) -> int:
        return self.free

    def timed(self, body: Callable[[], Any]) -> tuple[Any, Timing]:
        host, device = self.seconds
        return body(), Timing(host, lambda: device)

    def give_back_memory(self) -> None:
        self.given_back += 1

    # what tests ask
    # --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def stream(self, number: int):
        """Runs the block on another stream."""
        before = self.current_stream()
        self._local.stream = number
        try:
            yield
        finally:
            self.clocks[number][number] += 1
            self._local.stream = before
