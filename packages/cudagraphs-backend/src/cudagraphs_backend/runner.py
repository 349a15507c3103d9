"""Chooses for each call of a graph whether to replay a CUDA graph, capture one, or run plainly.

A captured CUDA graph is replayed only for inputs that match it and while nobody holds its results.
A call that fits none (sizes seen for the first time, addresses that keep changing, a call inside
somebody else's capture) runs plainly; `GraphedRunner.row` keeps the lasting reasons."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cudagraphs_backend import output_lifetime, pool_assignment, torch_private
from cudagraphs_backend.capturability import Traits
from cudagraphs_backend.capture import AliasingChanged, CapturedGraph, CapturePlan, Kind, Misplaced
from cudagraphs_backend.layout import Result, results_of
from cudagraphs_backend.limits import (
    MAX_ADDRESSES,
    MAX_CAPTURE_FAILURES,
    MAX_COPIED_BYTES,
    MAX_COPIED_BYTES_PER_OPERATOR,
    MAX_COPIED_RESULTS,
    MAX_REMEMBERED_SIZES,
)
from cudagraphs_backend.moving_inputs import RESTLESS, MovingInputs
from cudagraphs_backend.options import CudaGraphsOptions
from cudagraphs_backend.policy import CapturePolicy, GraphEntry, Verdicts
from cudagraphs_backend.state import DeviceState
from tracer_core.plugin_api import (
    CompileSpec,
    Phase,
    RunFunction,
    commit,
    is_predicted,
    logger,
    stage,
)


@dataclass(frozen=True, slots=True)
class GraphRow:
    """What became of one graph."""

    name: str
    backend: str
    phase: str
    #: Input sizes seen.
    sizes: int
    #: Captured CUDA graphs that are alive.
    recordings: int
    #: Memory of those CUDA graphs.
    nbytes: int
    #: Numbers of calls.
    replays: int
    plain: int
    #: Why the graph (or one of its sizes) runs plainly, or "".
    reason: str

    def sentence(self) -> str:
        """Returns the row in words."""
        calls = f"calls replayed: {self.replays}, plain: {self.plain}"
        if self.recordings:
            held = (
                f"{self.recordings} recorded for {self.sizes} sizes, {self.nbytes / 2**20:.1f} MiB"
            )
            return "; ".join(filter(None, (f"CUDA graphs: {held}; {calls}", self.reason)))
        return (
            f"runs without CUDA graphs: {self.reason}"
            if self.reason
            else f"CUDA graphs: none recorded yet; {calls}"
        )


#: Live runners by id. Not a WeakSet: other threads compile while somebody asks for a report.
_runners: weakref.WeakValueDictionary[int, GraphedRunner] = weakref.WeakValueDictionary()


def runners() -> list[GraphedRunner]:
    """Returns the runners that are alive."""
    return [
        valueref
        for valueref in (reference() for reference in _runners.valuerefs())
        if valueref is not None
    ]


class GraphedRunner:
    """Mutable: runs a graph by replaying CUDA graphs where it can; see the module's docstring.
    run_in_pools: `run` for a graph that announces from which pool its memory is to come
    (`pool_assignment`). verdicts: of earlier processes. launches: of a run."""

    #: It loads a CUDA graph's buffers before a predicted branch is known.
    commits = True

    def __init__(
        self,
        run: RunFunction,
        traits: Traits,
        spec: CompileSpec,
        state: DeviceState,
        options: CudaGraphsOptions,
        run_in_pools: pool_assignment.PoolRunner | None = None,
        verdicts: Verdicts | None = None,
        launches: int = 0,
    ) -> None:
        self._run, self._spec, self._state, self._options = run, spec, state, options
        self._run_in_pools = run_in_pools
        self._device, self._lock = state.device, state.lock
        self._tensors = (
            *traits.tensors,
            # what the runner is given beside the graph's inputs
            *range(traits.inputs, len(spec.inputs)),
        )
        self._moving = MovingInputs(spec.inputs, self._tensors, self._say)
        self._numbers = tuple(i for i in range(len(spec.inputs)) if i not in set(self._tensors))
        self._shaped = (
            tuple(i for i in self._tensors if i not in self._moving.stable) if spec.sizes else ()
        )
        self._operators, self._generators = traits.operators, traits.generators
        self._communicates = traits.communicates
        self._policy = CapturePolicy(
            options, spec, state.device, traits.communicates, verdicts, launches, self._visible
        )
        self._entries: OrderedDict[Any, GraphEntry] = OrderedDict()
        self._reasons: dict[str, None] = {}
        self._replays = self._plain = 0
        gradients = spec.phase is Phase.BACKWARD or any(output.gradient for output in spec.outputs)
        self._keeps_gradients = options.outputs == "saved" and gradients
        # set once a program used a kept result on another stream: results are copied from then on
        self._streamed = False
        _runners[id(self)] = self

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self._device.capturing():
            commit()
            return self._run(inputs)
        key = self._key(inputs)
        if not is_predicted():
            return self._called(key, inputs)
        graph = self._load(key, inputs)
        try:
            commit()
            return self._called(key, inputs)
        finally:
            if graph is not None:
                graph.loaded = None

    def _called(self, key: Any, inputs: list[Any]) -> Sequence[Any]:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                graph = self._ready(entry, inputs)
                if graph is not None:
                    self._replays += 1
                    entry.replays += 1
                    return graph.replay(inputs)
        return self._run_without_graph(key, inputs)

    def _load(self, key: Any, inputs: list[Any]) -> CapturedGraph | None:
        """Loads the buffers of the CUDA graph that a call with these inputs replays, before it is known
        whether the call is made. Returns the graph; None where it is not captured yet."""
        with self._lock:
            entry = self._entries.get(key)
            recordings = () if entry is None else tuple(entry.recordings)
            fitting = [graph for graph in recordings if not graph.closed and graph.matches(inputs)]
            if not fitting:
                return None
            graph = next((graph for graph in fitting if graph.free()), fitting[0])
            graph.load(inputs)
            return graph

    def _key(self, inputs: list[Any]) -> Any:
        """Returns what a CUDA graph depends on beside addresses: sizes, scalars, and the settings
        by which torch chooses kernels."""
        sizes = tuple([(*inputs[i].shape, *inputs[i].stride()) for i in self._shaped])
        numbers = tuple([_exact(inputs[i]) for i in self._numbers])
        return torch.is_inference_mode_enabled(), torch_private.numeric_settings(), sizes, numbers

    def _ready(self, entry: GraphEntry, inputs: list[Any]) -> CapturedGraph | None:
        """Returns a CUDA graph for this call: an existing one, or a new one if capturing is due;
        else None."""
        busy = 0
        may_keep = self._may_persist()
        for graph in tuple(entry.recordings):
            self._streamed |= graph.streamed
            lost = graph.closed or graph.streamed or graph.moved()
            if lost or (graph.plan.keeps_outputs and not may_keep):
                entry.recordings.remove(graph)
                graph.close()
            elif graph.matches(inputs):
                if graph.free():
                    return graph
                busy += 1
        if entry.reason and entry.timed.reopened():
            entry.reason = ""
        if (
            entry.reason
            or entry.runs < self._policy.warmup
            or len(self._reasons) >= MAX_CAPTURE_FAILURES
        ):
            return None
        if not self._policy.pays(entry) or not self._moving.recur(entry, inputs):
            return None
        captured_sizes = sum(bool(item.recordings) for item in self._entries.values())
        if not self._policy.affordable(entry, captured_sizes):
            return None
        keep = (
            self._options.outputs != "copy" and busy < self._options.copies and not self._streamed
        )
        return self._record(entry, inputs, keep)

    def _may_persist(self) -> bool:
        """Returns whether results that the program sees may stay in a CUDA graph's pool
        (`output_lifetime`)."""
        if self._options.outputs == "auto":
            return not output_lifetime.sent()
        stream = self._device.current_stream()
        return self._keeps_gradients and output_lifetime.gradients_may_stay(stream)

    def _visible(self, results: Sequence[Result]) -> list[Result]:
        return [result for index, result in enumerate(results) if not self._stays(index)]

    def _record(self, entry: GraphEntry, inputs: list[Any], keep: bool) -> CapturedGraph | None:
        """Captures a CUDA graph; returns None where the call has to run plainly."""
        plan = self._plan(entry, keep)
        places = {recording.place for recording in entry.recordings} | {plan.place(inputs)}
        if len(places) > MAX_ADDRESSES:
            if not entry.repaid():
                self._say(RESTLESS)
                return None
            oldest = min(entry.recordings, key=lambda recording: recording.used)
            entry.recordings.remove(oldest)
            oldest.close()
        with stage("cudagraphs_record", graph=self._spec.name) as record:
            result = self._made(plan, inputs)
            record.text = result if isinstance(result, str) else self._described(plan, result)
        if isinstance(result, str):
            entry.reason = result
            self._say(result)
            return None
        entry.recordings.append(result)
        entry.captures += 1
        self._state.admit(result, self._options)
        return result

    def _made(self, plan: CapturePlan, inputs: list[Any]) -> CapturedGraph | str:
        """Returns a captured CUDA graph, or why the capture failed."""
        try:
            result = self._recorded(plan, inputs)
        except AliasingChanged as error:
            return str(error)
        # the plain run that follows raises it again if it is the program's own
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        if result.nbytes > self._state.limit(self._options):
            result.close()
            return (
                f"one recording takes {result.nbytes / 2**20:.0f} MiB, more than memory_mib allows"
            )
        return result

    def _recorded(self, plan: CapturePlan, inputs: list[Any]) -> CapturedGraph:
        """Captures with scratch memory shared between CUDA graphs where the runner says what is
        scratch."""
        run_in_pools = self._run_in_pools
        if run_in_pools is not None:
            try:
                return CapturedGraph(
                    self._state,
                    lambda inputs: run_in_pools(inputs, pool_assignment.to),
                    inputs,
                    plan,
                    places=True,
                )
            except Misplaced:
                self._run_in_pools = None
        return CapturedGraph(self._state, self._run, inputs, plan)

    def _plan(self, entry: GraphEntry, keep: bool) -> CapturePlan:
        copied = tuple(sorted(entry.copied))
        direct = tuple(i for i in self._tensors if i not in entry.copied)
        assert entry.results is not None
        kinds = self._kinds(entry.results, keep)
        keeps_outputs = any(
            kind is Kind.KEEP and not spec.saved
            for kind, spec in zip(kinds, self._spec.outputs, strict=True)
        )
        return CapturePlan(
            copied,
            direct,
            self._spec.mutations,
            kinds,
            self._generators,
            keeps_outputs,
            self._communicates,
        )

    def _kinds(self, results: Sequence[Result], keep: bool) -> tuple[Kind, ...]:
        """Returns what the caller gets for each result. Results that only the backward reads, and
        gradients that may stay, are dropped soon and stay in the pool; what the program sees is
        copied if the copy is cheap beside the graph itself."""
        limit = min(MAX_COPIED_BYTES_PER_OPERATOR * self._operators, MAX_COPIED_BYTES)
        few = sum(bool(result.nbytes) for result in self._visible(results)) <= MAX_COPIED_RESULTS
        anything = self._options.outputs == "auto" and self._may_persist()
        kinds = []
        for index, result in enumerate(results):
            if not result.nbytes:
                kinds.append(
                    Kind.CONSTANT if self._spec.outputs[index].dtype is None else Kind.COPY
                )
            elif result.source is not None:
                kinds.append(Kind.INPUT)
            elif keep and (
                self._stays(index)
                or (anything and (result.shared or not few or result.nbytes > limit))
            ):
                kinds.append(Kind.KEEP)
            else:
                kinds.append(Kind.COPY)
        return tuple(kinds)

    def _stays(self, index: int) -> bool:
        """Returns whether a result stays in the pool however small it is."""
        spec = self._spec.outputs[index]
        is_gradient = spec.gradient or self._spec.phase is Phase.BACKWARD
        return spec.saved or (is_gradient and self._may_persist())

    def _say(self, reason: str) -> None:
        """Logs why a call runs plainly, once."""
        if reason not in self._reasons:
            self._reasons[reason] = None
            logger().warning(
                "%s, cudagraphs: runs without a recording: %s", self._spec.name, reason
            )

    def _described(self, plan: CapturePlan, graph: CapturedGraph) -> str:
        kinds = ", ".join(f"{sum(k is kind for k in plan.kinds)} {kind.value}" for kind in Kind)
        return (
            f"{self._spec.name} ({self._spec.phase.value}): {len(plan.direct)} inputs read in"
            f" place, {len(plan.copied)} copied, {len(plan.written)} written to; results: {kinds};"
            f" {graph.nbytes / 2**20:.1f} MiB"
        )

    def _run_without_graph(self, key: Any, inputs: list[Any]) -> Sequence[Any]:
        entry = self._entries.get(key)
        warming = entry is None or self._is_warming(entry)
        # else inputs are not held: a backward's can be freed after their last use
        items = list(inputs) if warming else []
        timing = None
        try:
            if self._policy.measured and entry is not None and entry.runs and entry.timed.wanted:
                outputs, timing = self._device.timed(lambda: self._run(inputs))
            else:
                outputs = self._run(inputs)
        except torch.OutOfMemoryError:
            self._state.make_room()  # the program runs eagerly in this call's place
            raise
        with self._lock:
            self._plain += 1
            entry = self._entries.get(key)
            if entry is not None and timing is not None:
                entry.timed.add(timing)
            if entry is None:
                entry = self._entries[key] = GraphEntry(self._policy.check(repr(key)))
                if len(self._entries) > MAX_REMEMBERED_SIZES:
                    self._say(f"it was called with more than {MAX_REMEMBERED_SIZES} sizes")
                    self._forget_a_size()
            if warming and self._is_warming(entry):
                entry.runs += 1
                entry.pointers = self._moving.pointers(items)
                entry.seen.add(self._moving.anchor(entry, entry.pointers))
                entry.results = results_of(outputs, items)
        return outputs

    def _is_warming(self, entry: GraphEntry) -> bool:
        return entry.runs < self._policy.warmup or entry.results is None

    def _forget_a_size(self) -> None:
        for key, entry in self._entries.items():
            if not entry.recordings:
                del self._entries[key]
                return
        self._entries.popitem(last=False)

    def forget(self) -> None:
        """Throws the CUDA graphs away; every size is warmed up again."""
        with self._lock:
            for entry in self._entries.values():
                for graph in entry.recordings:
                    graph.close()
            self._entries.clear()
            self._reasons.clear()
            self._replays = self._plain = 0

    def recapture(self) -> None:
        """Throws the CUDA graphs away; the next call of each size captures a new one."""
        with self._lock:
            for entry in self._entries.values():
                while entry.recordings:
                    entry.recordings.pop().close()
                entry.captures = entry.replays = entry.misses = 0

    def row(self) -> GraphRow:
        """Returns what became of this graph."""
        with self._lock:
            recordings = [
                recording
                for entry in self._entries.values()
                for recording in entry.recordings
                if not recording.closed
            ]
            return GraphRow(
                self._spec.name,
                self._spec.backend,
                self._spec.phase.value,
                len(self._entries),
                len(recordings),
                sum(item.nbytes for item in recordings),
                self._replays,
                self._plain,
                "; ".join(
                    dict.fromkeys(
                        [*self._reasons, *(e.reason for e in self._entries.values() if e.reason)]
                    )
                ),
            )


def _exact(value: Any) -> Any:
    """Returns a scalar as a dict key: floats by their bits."""
    return value.hex() if isinstance(value, float) else value
