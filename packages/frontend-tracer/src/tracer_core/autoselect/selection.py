"""Schedule selection: chooses among several candidates for one captured graph.

In: a captured graph, a config whose options are a `CandidatePlan`, and the dispatcher's
`compile_graph`.
Out: a runner, `Selection`.

Eager serves the first call. Then, in the background (with ``wait=True`` at the end of the first
call), each candidate compiles the graph, runs on copies of the first call's inputs, is verified
against eager, and is timed in turns with eager and the best so far; a faster one takes over at
once. Graphs that uses rng are compiled in the background but run within the next call,
because the generators belong to the process.

What always holds: only the program's own calls touch its tensors, gradients, hooks and random
numbers; the serving runner gives eager's results on the sizes of the first call; a candidate's
failure is in its row and in the log.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core.aot.backend_failure import raising_failures
from tracer_core.aot.compiled_graph import CompiledGraph
from tracer_core.autoselect import choice_store
from tracer_core.autoselect.alternating_rounds import AlternatingRounds
from tracer_core.autoselect.candidates import Candidate, CandidatePlan
from tracer_core.autoselect.choice import BackendChoice, CandidateRow
from tracer_core.autoselect.comparison import Comparison
from tracer_core.autoselect.sample import NoSample, Sample, sampled_call
from tracer_core.autoselect.timing import Times, timed
from tracer_core.autoselect.verification import Wrong
from tracer_core.background import worker
from tracer_core.background.thread_modes import Ambient
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import Training
from tracer_core.debug import stages
from tracer_core.debug.logs import logger, note
from tracer_core.options import CompileConfig
from tracer_core.registry.eager import EAGER
from tracer_core.registry.torch_style import TorchStyle

CompileGraph = Callable[[CapturedGraph, CompileConfig], CompiledGraph]

EAGER_NAME = EAGER.name
#: A candidate replaces a preferred one if it needs less than this fraction of its time.
GAIN = 0.98
#: Candidates within this fraction of the best time are timed against it once more, all together.
CLOSE = 1.25
_trials: weakref.WeakSet[Selection] = weakref.WeakSet()


@dataclasses.dataclass(slots=True)
class CandidateRun:
    """Mutable: a candidate on its way, or eager. run: what it compiled. row: what is known of it.
    candidate: None for eager.
    """

    row: CandidateRow
    run: RunFunction | None = None
    candidate: Candidate | None = None

    def note(self, **changes: Any) -> None:
        """Changes the row."""
        self.row = dataclasses.replace(self.row, **changes)


class Selection:
    """The runner that selects. Mutable until the choice is final."""

    def __init__(
        self, captured: CapturedGraph, config: CompileConfig, compile_graph: CompileGraph
    ) -> None:
        self.plan: CandidatePlan = config.options
        self._name = captured.name
        self._captured: CapturedGraph | None = captured
        self._compile = compile_graph
        eager = dataclasses.replace(config, backend=EAGER, options=None, mode="default")
        self._eager = compile_graph(captured, eager).run
        self._best, self._best_name = self._eager, EAGER_NAME
        self._candidate_runs = [
            CandidateRun(CandidateRow(candidate.label, "not tried"), candidate=candidate)
            for candidate in self.plan.candidates
        ]
        self._eager_run = CandidateRun(CandidateRow(EAGER_NAME, "chosen"), self._eager)
        self._ambient, self._record = Ambient(), stages.continued()
        self._turns, self._lock, self._done = (
            AlternatingRounds(),
            threading.Lock(),
            threading.Event(),
        )
        self._sample: Sample | None = None
        self._comparison: Comparison | None = None
        self._remembered: BackendChoice | None = None
        self._key, self._started = "", 0.0
        self._begun = self._here = False
        self._target: RunFunction = self._first
        self.plan.trials.append(self)
        _trials.add(self)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        return self._target(inputs)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the choice; returns False on timeout."""
        return self._done.wait(seconds)

    def choice(self) -> BackendChoice:
        """Returns the choice so far."""
        eager, decided = self._eager_run.row, self._done.is_set()
        if not decided and eager.status == "chosen" and not eager.detail:
            eager = dataclasses.replace(eager, detail="serves meanwhile")
        rows = (*(run.row for run in self._candidate_runs), *self.plan.refused, eager)
        remembered = decided and self._remembered is not None
        return BackendChoice(self._name, self._best_name, rows, decided, remembered)

    # Calls of the program

    def _first(self, inputs: list[Any]) -> Sequence[Any]:
        """Serves the first call, and keeps copies of its inputs for the candidates."""
        with self._lock:
            begun, self._begun = self._begun, True
        captured = self._captured
        if begun or captured is None:  # another thread is in its first call, or this one inside it
            return self._eager(inputs)
        try:
            repeatable = self.plan.options.repeatable
            outputs, sample = sampled_call(captured, inputs, self._eager, repeatable)
        except BaseException:
            self._begun = False  # the program's own error: the next call counts as the first
            raise
        if isinstance(sample, NoSample):
            self._keep_eager(sample)
            return outputs
        self._sample, self._target = sample, self._served
        self._comparison = Comparison(sample, self._eager, self.plan.options.tolerance)
        if self.plan.options.wait:
            self._work()
            self._run_here()
        else:
            worker.submit(self._work)
        return outputs

    def _served(self, inputs: list[Any]) -> Sequence[Any]:
        if self._here:
            self._run_here()
        with self._turns.in_foreground():
            return self._best(inputs)

    # Background work

    def _work(self) -> None:
        """Compiles the candidates, and runs them unless they uses rng."""
        self._started = time.perf_counter()
        try:
            with self._record(), self._ambient.entered():
                self._try_all()
        except Exception as error:
            self._broke(error)

    def _try_all(self) -> None:
        assert self._captured is not None and self._sample is not None
        if self.plan.options.remember:
            self._key = choice_store.key_of(self._captured, self.plan)
            self._remembered = choice_store.recall(self._key, self._name)
        if self._remembered is not None and self._follow(self._remembered):
            return
        self._remembered = None
        for run in self._candidate_runs:
            if self._is_over(run):
                continue
            self._compile_one(run)
            if run.run is not None and not self._sample.uses_rng:
                self._verify_candidate(run)
        if self._sample.uses_rng and any(run.run is not None for run in self._candidate_runs):
            self._here = True
        else:
            self._run_off()
            self._decide()

    def _follow(self, remembered: BackendChoice) -> bool:
        """Uses a stored choice, if that is still possible."""
        assert self._sample is not None
        known = {row.name: row for row in remembered.rows}
        by_name = {run.row.name: run for run in self._candidate_runs}
        chosen = by_name.get(remembered.chosen)
        if chosen is None and remembered.chosen != EAGER_NAME:
            return False
        if chosen is not None:
            self._compile_one(chosen)
            if chosen.run is None or (not self._sample.uses_rng and not self._is_right(chosen)):
                return False
            seconds, error = chosen.row.compile_seconds, chosen.row.error
            known[remembered.chosen] = dataclasses.replace(
                known[remembered.chosen], compile_seconds=seconds, error=error
            )
            self._best = chosen.run
        for run in (*self._candidate_runs, self._eager_run):
            run.row = known.get(run.row.name, run.row)
        self._best_name = remembered.chosen
        if self._sample.uses_rng and chosen is not None:
            self._best, self._here = self._eager, True  # verified by the next call
        else:
            self._decide()
        return True

    def _is_over(self, entry: CandidateRun) -> bool:
        """Whether no further candidate is started; the row says why."""
        spent = time.perf_counter() - self._started
        if worker.is_ending():
            entry.note(detail="the program ended")
        elif spent > self.plan.options.budget:
            entry.note(detail=f"the budget of {self.plan.options.budget:g} s was spent")
        else:
            return False
        return True

    def _compile_one(self, entry: CandidateRun) -> None:
        assert self._captured is not None and entry.candidate is not None
        captured, config = self._captured, entry.candidate.config
        start = time.perf_counter()
        reason = _not_for(captured, config)
        if reason is not None:
            entry.note(status="refused", detail=reason)
            return
        try:
            with raising_failures():  # a candidate that fails is dropped
                compiled = self._compile(captured.copied(), config)
            entry.run = compiled.run
            if compiled.fallback is not None:
                entry.note(detail=compiled.fallback.reason)
        except Exception as error:
            self._failed(entry, error)
        entry.note(compile_seconds=time.perf_counter() - start)

    def _failed(self, entry: CandidateRun, error: Exception) -> None:
        entry.run = None
        entry.note(status="failed", detail=f"{type(error).__name__}: {error}")
        logger().warning("auto, %s: %s failed: %s", self._name, entry.row.name, entry.row.detail)

    def _is_right(self, entry: CandidateRun) -> bool:
        """Runs a candidate twice (the core checks the first result, the second is typical) and
        verifies it.
        """
        assert self._sample is not None and self._comparison is not None and entry.run is not None
        try:
            start = time.perf_counter()
            self._sample.run(entry.run)
            first = time.perf_counter() - start
            distance = self._comparison.error(entry.run)
        except Wrong as wrong:
            entry.run = None
            entry.note(status="wrong", detail=str(wrong))
            logger().warning("auto, %s: %s is wrong: %s", self._name, entry.row.name, wrong)
            return False
        except Exception as error:
            self._failed(entry, error)
            return False
        entry.note(error=distance, compile_seconds=(entry.row.compile_seconds or 0.0) + first)
        return True

    def _verify_candidate(self, entry: CandidateRun) -> None:
        """Verifies and times a candidate; a faster one takes over."""
        if not self._is_right(entry):
            return
        assert entry.run is not None
        runners = [self._eager, entry.run]
        if self._best is not self._eager:
            runners.append(self._best)
        try:
            times = self._timed(runners)
        except Exception as error:
            self._failed(entry, error)
            return
        self._note_times(entry, times, 1)
        entry.note(status="slower")
        if all(times.ratio(1, other) < GAIN for other in range(len(runners)) if other != 1):
            self._take_over(entry)

    def _timed(self, runners: Sequence[RunFunction]) -> Times:
        assert self._sample is not None
        return timed(self._sample, runners, self._turns, self.plan.options.timing)

    def _note_times(self, entry: CandidateRun, times: Times, index: int) -> None:
        """Records the times of an entry; eager's are at index 0."""
        eager_ms = times.ms(0)
        entry.note(ms=times.ms(index), eager_ms=eager_ms)
        self._eager_run.note(ms=eager_ms, eager_ms=eager_ms)

    def _run_off(self) -> None:
        """Times the candidates close to the best against it once more; among equals keeps the
        first, eager before all.
        """
        timed_runs = [
            (run.row.ms, run.row.ms / run.row.eager_ms, run)
            for run in self._candidate_runs
            if run.run is not None and run.row.ms and run.row.eager_ms
        ]
        least = min([1.0, *(ratio for _, ratio, _ in timed_runs)])
        quickest = min((ms for ms, _, _ in timed_runs), default=math.inf)
        # by either measure: the machine may have been busy while one of them was timed
        close = [
            item
            for ms, ratio, item in timed_runs
            if ratio <= CLOSE * least or ms <= CLOSE * quickest
        ]
        if not close or (len(close) == 1 and least * CLOSE < 1.0):
            return
        times = self._timed([self._eager, *(item.run for item in close if item.run is not None)])
        for index, value in enumerate(close, 1):
            self._note_times(value, times, index)
        everybody = range(len(close) + 1)
        fastest = min(everybody, key=lambda index: times.ratio(index, 0))
        first = next(index for index in everybody if times.ratio(fastest, index) >= GAIN)
        self._take_over([self._eager_run, *close][first])

    def _take_over(self, winner: CandidateRun) -> None:
        """Makes a candidate, or eager, serve from now on."""
        assert winner.run is not None
        for other in (*self._candidate_runs, self._eager_run):
            if other.row.status == "chosen" and other is not winner:
                other.note(
                    status="slower", detail="" if other is self._eager_run else other.row.detail
                )
        winner.note(status="chosen")
        self._best, self._best_name = winner.run, winner.row.name

    def _run_here(self) -> None:
        """Runs the candidates of a graph that uses rng, within a call of the
        program.
        """
        with self._lock:
            here, self._here = self._here, False
        if not here:
            return
        with self._record():
            try:
                if self._remembered is not None:
                    self._check_remembered()
                else:
                    for run in self._candidate_runs:
                        if run.run is not None and not self._is_over(run):
                            self._verify_candidate(run)
                    self._run_off()
                self._decide()
            except Exception as error:
                self._broke(error)

    def _check_remembered(self) -> None:
        (chosen,) = [run for run in self._candidate_runs if run.row.name == self._best_name]
        if self._is_right(chosen):
            assert chosen.run is not None
            self._best = chosen.run
        else:
            self._best_name, self._remembered = EAGER_NAME, None
            self._eager_run.note(status="chosen")

    # The end

    def _keep_eager(self, reason: NoSample) -> None:
        with self._record():
            self._give_up(f"kept, because {reason}")

    def _broke(self, error: Exception) -> None:
        """Logs that the selection itself failed, not a candidate; eager continues."""
        logger().warning("auto, %s: the selection failed: %r", self._name, error, exc_info=error)
        self._give_up(f"kept, because the selection failed: {type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        self._best, self._best_name = self._eager, EAGER_NAME
        self._eager_run.note(status="chosen", detail=reason)
        self._key = ""
        self._decide()

    def _decide(self) -> None:
        self._target = self._best
        self._sample = self._comparison = self._captured = None
        for run in self._candidate_runs:
            run.run = None
        self._done.set()
        choice = self.choice()
        if self._key and self._remembered is None and not worker.is_ending():
            choice_store.keep(self._key, choice)
        with stages.stage("auto", graph=self._name) as record:
            record.text = str(choice)
        note("stages", "%s", choice)

    def stop_in_child(self) -> None:
        """After a fork: keeps the current runner."""
        if not self._done.is_set():
            self._lock, self._turns = threading.Lock(), AlternatingRounds()
            self._here = False
            self._eager_run.note(detail="the process was forked during the selection")
            self._target, self._captured = self._best, None
            self._done = threading.Event()
            self._done.set()


def _not_for(captured: CapturedGraph, config: CompileConfig) -> str | None:
    """Returns why a candidate cannot compile this graph."""
    backend = config.backend
    kinds = {value.device.type for value in captured.real_inputs if isinstance(value, torch.Tensor)}
    if kinds and not kinds & backend.devices:
        return f"it runs on {', '.join(sorted(backend.devices))}, not on {', '.join(sorted(kinds))}"
    own_autograd = isinstance(backend.compile, TorchStyle) and not backend.compile.functional
    if captured.needs_grad and backend.training is Training.INFERENCE_ONLY and not own_autograd:
        return "it is for inference only"
    return None


def _after_fork() -> None:
    for trial in list(_trials):
        trial.stop_in_child()


os.register_at_fork(after_in_child=_after_fork)
