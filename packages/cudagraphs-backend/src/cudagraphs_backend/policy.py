"""The policy of CUDA graphs: which graphs, and which sizes of them, are captured.

What the program asks for (``backend="cudagraphs"``, or a mode that captures every graph) is captured
where it can be (`capturability`). Under the option `measured` (inductor's mode "default") the graph
also has `MIN_GRAPH_LAUNCHES` launches, and each size passes, in this order: the CPU-bound check, calls
that fit its CUDA graphs, free memory, the number of captured sizes, and what would be copied.

CPU-bound check: a CUDA graph pays where the host, not the device, limits a graph's speed, or where
the device idles between so many launches that it counts. It times plain runs. Nothing waits for the
device: a run that it has not finished after `QUERIES` queries counts as device-bound. A device-bound
size is timed once more after `MAX_DEVICE_BOUND_CALLS` calls: other processes may have used the device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from cudagraphs_backend.capture import CapturedGraph
from cudagraphs_backend.device import Device, Timing
from cudagraphs_backend.layout import Result
from cudagraphs_backend.limits import (
    MAX_DEVICE_BOUND_CALLS,
    MAX_MEASURED_COPIES,
    MAX_MEASURED_SIZES,
    MAX_UNPAID_CALLS,
    MIN_CALLS_OF_A_SIZE,
    MIN_FREE_MEMORY,
    MIN_GRAPH_LAUNCHES,
    MIN_REPLAYS_OF_CAPTURE,
)
from cudagraphs_backend.options import CudaGraphsOptions
from tracer_core.plugin_api import CacheLocationError, CompileSpec, Store, logger

#: Timed runs; the majority decides.
RUNS = 3

#: Host seconds below which a plain call is no slower than a replay (decision 0011: 20 to 40
#: microseconds).
SHORT = 60e-6

#: A run is CPU-bound if the host takes at least this part of the time between the events round it.
HOST_PART = 0.75

#: The same of a graph with collectives, whose device also waits for slower ranks.
HOST_PART_OF_RANKS = 0.5


#: Seconds between two kernels that a replay saves (2.8 microseconds less 0.7, on an H200), and the part
#: of a run's device time that they must come to.
LAUNCH_GAP, GAPS_PART = 2e-6, 0.02

#: Bytes of results whose copies take as long as a replay saves for one launch.
COPIED_BYTES_OF_LAUNCH = 2 * 2**20

#: The verdict on a size whose speed the device limits.
DEVICE_BOUND = "the device sets its pace, not the host"

#: How often the timings are queried before the device has finished the runs.
QUERIES = 64


#: Why CUDA graphs do not pay, or "" where they do, by module and sizes.
_STORE = Store("cuda-graph-verdicts")


class Verdicts:
    """Verdicts of the CPU-bound check on one generated module, by size, in the cache folder.

    module: the module's source. from_store: the module is one that an earlier process made, and that
    process's verdicts hold."""

    def __init__(self, module: str, device: torch.device, *, from_store: bool) -> None:
        self._module = torch.__version__, torch.cuda.get_device_name(device), module
        self._from_store = from_store

    def _name(self, size: str) -> str:
        return hashlib.sha256(repr((self._module, size)).encode()).hexdigest()[:32]

    def known(self, size: str) -> str | None:
        """Returns an earlier process's verdict, or None."""
        try:
            result = _STORE.read(self._name(size)) if self._from_store else None
            return None if result is None else result.decode()
        except (CacheLocationError, ValueError):
            return None

    def store(self, size: str, verdict: str) -> None:
        """Stores a verdict for later processes."""
        try:
            _STORE.write(self._name(size), verdict.encode())
        except CacheLocationError as error:
            logger().info("whether CUDA graphs pay is timed again by the next process: %s", error)


@dataclass(slots=True)
class CpuBoundCheck:
    """Mutable: the timed runs of one size."""

    #: The graph has collectives.
    communicates: bool = False
    #: Gets the verdict.
    store: Callable[[str], None] | None = None
    #: Kernels and operators of one run.
    launches: int = 0
    #: How often the timings were queried.
    queries: int = 0
    timings: list[Timing] = field(default_factory=list)
    verdict: str | None = None
    #: Calls since the size counts as device-bound; None once it is timed again.
    calls: int | None = 0

    @property
    def wanted(self) -> bool:
        """Returns whether another run should be timed."""
        return len(self.timings) < RUNS and self.verdict is None

    def add(self, timing: Timing) -> None:
        self.timings.append(timing)

    @property
    def decided(self) -> bool:
        return self.verdict is not None

    def reopened(self) -> bool:
        """Counts a plain call of a size that counts as device-bound; returns whether the size is timed
        again from here on."""
        if self.verdict != DEVICE_BOUND or self.calls is None:
            return False
        self.calls += 1
        if self.calls < MAX_DEVICE_BOUND_CALLS:
            return False
        self.verdict, self.calls, self.queries = None, None, 0
        return True

    def against(self) -> str | None:
        """Returns why a CUDA graph does not pay; None where it does, or where that is undecided."""
        if self.verdict is None and len(self.timings) >= RUNS:
            self.queries += 1
            unfinished = any(timing.device() is None for timing in self.timings)
            if unfinished and self.queries < QUERIES:
                return None
            self.verdict = self._evaluated()
            self.timings.clear()
            if self.store is not None:
                self.store(self.verdict)
        return self.verdict or None

    def _evaluated(self) -> str:
        host = min(timing.host for timing in self.timings)
        if host < SHORT:
            return f"a plain call takes the host {host * 1e6:.0f} microseconds, a replay no fewer"
        part = HOST_PART_OF_RANKS if self.communicates else HOST_PART
        votes = 0
        for timing in self.timings:
            device = timing.device()
            if device is not None:
                gaps = self.launches * LAUNCH_GAP
                votes += timing.host >= part * device or gaps >= GAPS_PART * device
        return "" if 2 * votes > len(self.timings) else DEVICE_BOUND


class GraphEntry:
    """Mutable: the CUDA graphs of one set of sizes. runs: plain runs so far. pointers: input
    addresses of the last call that had no CUDA graph. copied: inputs whose addresses change between
    calls. seen: address tuples of the other inputs. captures, replays: so far. timed, misses:
    under the option `measured`, timed runs, and calls that looked for a CUDA graph in vain.
    """

    __slots__ = (
        "misses", "captures", "copied", "pointers", "reason", "recordings", "replays", "results",
        "runs", "seen", "timed",
    )  # fmt: skip

    def __init__(self, timed: CpuBoundCheck) -> None:
        self.recordings: list[CapturedGraph] = []
        self.runs = self.captures = self.replays = self.misses = 0
        self.pointers: list[int] | None = None
        self.copied: set[int] = set()
        self.seen: set[tuple[int, ...]] = set()
        self.results: tuple[Result, ...] | None = None
        self.timed = timed
        self.reason = ""

    def recurs(self) -> bool:
        """Returns whether calls came back to the captured addresses, as those of a few alternating
        batches do, before a third capture."""
        return self.captures < 2 or self.replays >= self.captures

    def repaid(self) -> bool:
        """Returns whether the captures so far were replayed often enough for another one."""
        return self.captures > 0 and self.replays >= MIN_REPLAYS_OF_CAPTURE * self.captures


def few_launches(launches: int) -> str | None:
    """Returns why a graph with this many launches is not captured under `measured`, or None."""
    few = f"{launches} launches, and in mode 'default' it takes {MIN_GRAPH_LAUNCHES}"
    return few if launches < MIN_GRAPH_LAUNCHES else None


class CapturePolicy:
    """Decides about the sizes of one graph.

    visible: returns the results that the program sees, of which copies are made."""

    def __init__(
        self,
        options: CudaGraphsOptions,
        spec: CompileSpec,
        device: Device,
        communicates: bool,
        verdicts: Verdicts | None,
        launches: int,
        visible: Callable[[Sequence[Result]], Sequence[Result]],
    ) -> None:
        self._spec, self._device, self._visible = spec, device, visible
        self._communicates, self._verdicts, self._launches = communicates, verdicts, launches
        self.measured = options.measured
        #: How many runs of a size precede its capture.
        self.warmup = options.warmup
        if self.measured and spec.sizes:
            self.warmup = max(options.warmup, MIN_CALLS_OF_A_SIZE)

    def check(self, size: str) -> CpuBoundCheck:
        """Returns the CPU-bound check of a size, decided already where an earlier process did."""
        verdicts = self._verdicts
        if verdicts is None or not self.measured:
            return CpuBoundCheck(self._communicates, launches=self._launches)
        store = lambda verdict: verdicts.store(size, verdict)
        return CpuBoundCheck(
            self._communicates, store, self._launches, verdict=verdicts.known(size)
        )

    def pays(self, entry: GraphEntry) -> bool:
        """Returns whether timed runs show that capturing this size pays, and captures are replayed. A
        negative verdict is final: `entry.reason`."""
        if not self.measured:
            return True
        entry.reason = entry.timed.against() or ""
        if entry.misses >= max(MAX_UNPAID_CALLS, entry.replays):
            entry.reason = (
                f"of {entry.misses + entry.replays} calls, {entry.replays} fit a recording"
            )
            while entry.recordings:
                entry.recordings.pop().close()
        if entry.reason:
            logger().info("%s, cudagraphs: not recorded: %s", self._spec.name, entry.reason)
        elif entry.timed.decided:
            entry.misses += 1
        return entry.timed.decided and not entry.reason and entry.recurs()

    def affordable(self, entry: GraphEntry, captured_sizes: int) -> bool:
        """Returns whether memory and copies allow a capture. A negative verdict is final:
        `entry.reason`."""
        if self.measured:
            entry.reason = self._cost(entry, captured_sizes)
        return not entry.reason

    def _cost(self, entry: GraphEntry, captured_sizes: int) -> str:
        """Returns which limit forbids a capture, or ""."""
        if self._device.free_bytes() < self._device.total_bytes() * MIN_FREE_MEMORY:
            return "the device is short of memory"
        if self._spec.sizes and captured_sizes >= MAX_MEASURED_SIZES:
            return f"{MAX_MEASURED_SIZES} of its sizes are recorded"
        assert entry.results is not None
        visible = self._visible(entry.results)
        if any(result.shared for result in visible):
            return "its results share memory with each other"
        nbytes = sum(result.nbytes for result in visible if result.source is None)
        much = f"its results of {nbytes >> 20} MiB are much to copy"
        saved = self._launches * COPIED_BYTES_OF_LAUNCH
        return much if nbytes > max(MAX_MEASURED_COPIES, saved) else ""
