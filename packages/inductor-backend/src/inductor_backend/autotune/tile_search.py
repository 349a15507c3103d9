"""Measures other tiles of a graph's kernels while the program runs, and launches the fastest.

After `CALLS` calls of a graph a thread compiles the candidates of its kernels (`tiles`), those that
move most first. Later calls measure them, for `SLICE` seconds each, on memory of their own and with
nothing else on the device. Then the graph launches the fastest ones, and its CUDA graphs are
captured again. They are stored (`faster_tiles`), so that a later process measures nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import queue
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from inductor_backend.autotune.choices import runs_of, specifications
from inductor_backend.autotune.tiles import SearchedKernel
from inductor_backend.limits import MAX_SEARCH_MEMORY, MAX_SEARCH_SECONDS, MAX_SEARCHED_KERNELS
from inductor_backend.runtime.cuda import build, faster_tiles, launch, measurement
from inductor_backend.runtime.cuda.triton_compile import Kernel
from inductor_backend.runtime.module_runner import ModuleRunner
from tracer_core.plugin_api import logger

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: Calls of a graph before its candidates are compiled: a program that recompiles calls most graphs
#: less often.
CALLS = 3

#: Seconds that one call measures.
SLICE = 0.05

#: Kernels whose candidates are compiled side by side.
TOGETHER = 4

#: Seconds that the end of the process waits for kernels that are being compiled.
END_SECONDS = 2.0


_Compiled = deque[SearchedKernel | None]

#: The searches of graphs that are alive.
SEARCHES: weakref.WeakSet[TileSearch] = weakref.WeakSet()


class TileSearch:
    """Mutable: the search of one graph. due: whether its calls have to `advance` it. recapture:
    throws away the CUDA graphs that were captured of the graph."""

    def __init__(self, c: Compilation, recapture: Callable[[], None]) -> None:
        self.name, self.device = c.spec.name, c.target.device
        self._c: Compilation | None = c
        self._recapture = recapture
        #: Kernels whose candidates are compiled; None at the end.
        self._compiled: _Compiled = deque()
        #: Kernels that are measured, and their numbers of programs.
        self._measured: list[tuple[Kernel, int]] = []
        self._calls = self._changed = 0
        self._seconds = 0.0
        self._busy = threading.Lock()
        self.due = True
        SEARCHES.add(self)

    @property
    def compiling(self) -> bool:
        """Returns whether candidates are being compiled."""
        return self.running and not (self._compiled and self._compiled[-1] is None)

    @property
    def running(self) -> bool:
        """Returns whether candidates are being compiled or measured."""
        return self.due and self._calls >= CALLS

    def advance(self) -> None:
        """Counts a call, or measures kernels whose candidates are compiled. Raises nothing: a search
        that fails ends, and the graph keeps its kernels."""
        self._calls += 1
        if self._calls == CALLS and self._c is not None:
            _compilations().put((self._c, self._compiled))
        if not self._compiled or _capturing(self.device) or not self._busy.acquire(False):
            return None
        try:
            # a new thread has no modes, no autocast and no hooks of the program's
            measuring = threading.Thread(target=self._measure, args=(_stream(self.device),))
            try:
                measuring.start()
            except RuntimeError as error:  # the interpreter is ending
                return self._end(f"; {error}")
            measuring.join()
            if not self.due and self._changed:
                self._recapture()
        finally:
            self._busy.release()

    def _measure(self, stream: contextlib.AbstractContextManager[Any]) -> None:
        began = time.perf_counter()
        try:
            with torch.no_grad(), stream:
                while self._compiled and time.perf_counter() < began + SLICE:
                    item = self._compiled.popleft()
                    if item is None or self._seconds > MAX_SEARCH_SECONDS:
                        self._end("")
                        break
                    self._choose(item)
        except Exception as error:  # the driver's, or no memory: the program goes on without
            self._end(f"; it ended by {type(error).__name__}: {error}")
        self._seconds += time.perf_counter() - began

    def _end(self, why: str) -> None:
        self.due, self._c = False, None
        self._changed = launch.use_faster_tiles(self._measured, self.device)
        logger().info(
            "%s: tiles of %d kernels measured in %.2f s, other tiles in %d launches%s",
            self.name, len(self._measured), self._seconds, self._changed, why,
        )  # fmt: skip

    def _choose(self, item: SearchedKernel) -> None:
        """Measures the candidates for a kernel, unless that is done, and launches the fastest."""
        assert self._c is not None
        candidates = _candidates(self._c, item)
        first, *others = candidates
        kernel, programs = candidates[first]
        if not faster_tiles.allowed(kernel) or item.nbytes > MAX_SEARCH_MEMORY * _free(self.device):
            return
        if not faster_tiles.known(kernel, programs, self.device):
            times = measurement.times(runs_of(self._c, item.choice, verify_all=True), quick=True)
            if first not in times:
                return
            name = measurement.fastest(times)
            facts = {"chosen": name, "milliseconds": times, "what": item.choice.what()}
            faster = candidates[name] if name in others else None
            faster_tiles.insert(kernel, programs, self.device, faster, facts)
        self._measured.append((kernel, programs))


def with_tile_search(runner: ModuleRunner, c: Compilation) -> ModuleRunner:
    """Returns the runner whose calls search for faster tiles."""
    search = TileSearch(c, getattr(runner.run, "recapture", lambda: None))
    inner = runner.run

    def run(inputs: list[Any]) -> Any:
        if search.due:
            search.advance()
        return inner(inputs)

    return runner.with_run(run)


def _distinct(c: Compilation) -> list[SearchedKernel]:
    """Returns the kernels to measure, each once, those that move most in all first."""
    items: dict[str, SearchedKernel] = {}
    moved: Counter[str] = Counter()
    for item in c.searched:
        base = {"": item.choice.kernels.first()}
        ((kernel, programs),) = specifications(c, base, item.choice.name).values()
        if not faster_tiles.known(kernel, programs, c.target.device):
            key = faster_tiles.key_of(kernel, programs)
            items[key] = item
            moved[key] += item.nbytes
    return [items[key] for key, _ in moved.most_common(MAX_SEARCHED_KERNELS)]


def _candidates(c: Compilation, item: SearchedKernel) -> dict[str, tuple[Kernel, int]]:
    """Returns the candidates, first the graph's kernel, without those that take their parameters in
    another order."""
    kernels = item.choice.kernels
    pointers = kernels.first().pointers
    same = {name: kernel for name, kernel in kernels.items() if kernel.pointers == pointers}
    return specifications(c, same, item.choice.name)


def _compile(c: Compilation, compiled: _Compiled) -> None:
    """Compiles the candidates of a graph's kernels, and appends each of these to `compiled`."""
    kernels = _distinct(c)
    for start in range(0, len(kernels), TOGETHER):
        some = kernels[start : start + TOGETHER]
        if c.target.device.type == "cuda":
            wanted = [kernel for item in some for kernel, _ in _candidates(c, item).values()]
            build.build_side_by_side(wanted, c.target.device)
        for item in some:
            compiled.append(item)
        if _ending.is_set():
            return


#: Set when the process ends.
_ending = threading.Event()


@functools.cache
def _compilations() -> queue.SimpleQueue[tuple[Compilation, _Compiled] | None]:
    """Returns the queue of graphs whose candidates a thread compiles, one graph after the other. It
    holds no search, which owns its graph's CUDA graphs."""
    waiting: queue.SimpleQueue[tuple[Compilation, _Compiled] | None] = queue.SimpleQueue()

    def work() -> None:
        while (item := waiting.get()) is not None:
            c, compiled = item
            try:
                _compile(c, compiled)
            except Exception as error:  # the program goes on, with the kernels that it has
                logger().info("%s: %s: %s", c.spec.name, type(error).__name__, error)
            compiled.append(None)
            del item, c, compiled

    thread = threading.Thread(target=work, name="tile-search", daemon=True)

    def end() -> None:
        _ending.set()
        waiting.put(None)
        thread.join(END_SECONDS)

    # Python stops a thread that is left where it next takes the GIL; inside of torch that aborts.
    getattr(threading, "_register_atexit", atexit.register)(end)
    thread.start()
    return waiting


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which another thread uses this thread's current stream."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(device))


def _free(device: torch.device) -> float:
    return float(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else float("inf")
