"""Notes how the branches on tensors go in one call, region by region."""

from __future__ import annotations

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.execution.capture_lock import can_trace
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.entry.resume_function import Continuation
from tracer_core.execution.tiers.branch_profile import outcome
from tracer_core.fx_capture.specialization_history import Outcome

use_own_builtins(globals())


class BranchWatch:
    """How branches on tensors go in one call. Mutable."""

    def __init__(self, start: GuardedCache) -> None:
        """start: the region where the call begins."""
        #: Code regions, each with the number of answers before it.
        self._regions: list[tuple[GuardedCache, int]] = [(start, 0)]
        self._answers: list[Outcome] = []

    def begin(self, region: GuardedCache | None) -> None:
        """Notes a code region that does not begin behind such a branch, if it was captured."""
        if region is not None:
            self._regions.append((region, len(self._answers)))

    def ask(self, continuation: Continuation) -> bool:
        """Notes the answer that the instruction at a graph break will get, if it asks for one."""
        if not can_trace():
            return False
        answer = outcome(continuation.resume_function.layouts, continuation.values)
        if answer is not None:
            self._answers.append(answer)
        return answer is not None

    def answers(self) -> list[tuple[GuardedCache, list[Outcome]]]:
        """Returns the code regions, each with all answers behind it: a trace that answers one more
        question may have no break that made the next region begin there."""
        return [(region, self._answers[n_before:]) for region, n_before in self._regions]
