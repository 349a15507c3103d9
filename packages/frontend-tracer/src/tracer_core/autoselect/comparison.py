"""Compares a candidate's outcome with eager's, where values may change concurrently or be nothing
but rounding.

A candidate is wrong only if it differs from two runs of eager that agree, by more than eager's own
results change when the last bits of its inputs change.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer_core.autoselect.sample import Outcome, Sample
from tracer_core.autoselect.verification import Wrong, error_of
from tracer_core.contract.runner import RunFunction
from tracer_core.limits import MAX_COMPARISONS

#: How often eager runs on nudged inputs before a candidate counts as wrong.
NUDGES = 2


class Comparison:
    """Compares outcomes with eager's. Mutable: keeps eager's outcome."""

    def __init__(self, sample: Sample, eager: RunFunction, tolerance: float | None) -> None:
        self._sample, self._eager, self._tolerance = sample, eager, tolerance
        self._smooth = not sample.has_gradients
        self._expected: Outcome | None = None

    def error(self, runner: RunFunction) -> float:
        """Returns the error of one run of a runner. Raises Wrong.

        Parameters without training are read in place, so the program may have changed them since
        eager's run: a difference is compared again between two runs of eager that agree.
        """
        if self._expected is not None:
            try:
                return self._error(self._expected, self._sample.run(runner))
            except Wrong:
                pass
        for _ in range(MAX_COMPARISONS):
            before = self._sample.run(self._eager).detached_copy()
            result = self._sample.run(runner).detached_copy()
            self._expected = self._sample.run(self._eager).detached_copy()
            try:
                self._error(before, self._expected)
            except Wrong:
                continue
            return self._told_apart(self._expected, result)
        raise Wrong(
            f"not known: eager's own results changed during each of {MAX_COMPARISONS} comparisons"
        )

    def _told_apart(self, expected: Outcome, outcome: Outcome) -> float:
        """Returns the error of an outcome whose difference may be rounding."""
        try:
            return self._error(expected, outcome)
        except Wrong:
            nudged = [
                self._sample.nudged(self._eager, seed).detached_copy() for seed in range(NUDGES)
            ]
            return self._error(expected, outcome, nudged)

    def _error(self, expected: Outcome, outcome: Outcome, nudged: Sequence[Outcome] = ()) -> float:
        return error_of(expected, outcome, self._tolerance, nudged, smooth=self._smooth)
