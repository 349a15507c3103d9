"""Notices captures whose entries no later call uses: a compile at every call.

In: after each capture of an object's, or region's, first cache entry, what holds the entry. Out: whether
another such capture is worth it. A program that brings a new object, new keyword names or new code with
each call would be captured at each call, as each has a recompile limit of its own.
"""

from __future__ import annotations

from collections import deque

from tracer_core.execution.entry.guarded_cache import SAMPLED, GuardedCache, Root
from tracer_core.limits import MAX_SINGLE_USES


class SingleUses:
    """The last first entries of one compiled function. Mutable. One call counts once, however many
    code regions it captures."""

    def __init__(self) -> None:
        #: (what holds the entry, its region, the region's `shared` at that time).
        self._newest: deque[tuple[Root | GuardedCache, GuardedCache, int]] = deque()
        self._call: object = None
        self._passed, self._wait = 0, SAMPLED

    def note(self, call: object, holder: Root | GuardedCache, region: GuardedCache) -> None:
        """Notes a capture. call: equal for the captures of one call."""
        if call == self._call:
            return
        self._call = call
        self._newest.append((holder, region, region.shared))
        while len(self._newest) > MAX_SINGLE_USES:
            self._newest.popleft()

    def skips_capture(self) -> bool:
        """Returns whether a call that nothing fits does without a capture, because no call used what
        the last captures gave; counts it. One in `SAMPLED` is captured, so that a program which
        settles later is seen; after each that was for nothing, half as often."""
        if len(self._newest) < MAX_SINGLE_USES or any(map(_was_used, self._newest)):
            self._passed, self._wait = 0, SAMPLED
            return False
        self._passed += 1
        if self._passed < self._wait:
            return True
        self._passed, self._wait = 0, min(2 * self._wait, SAMPLED * SAMPLED)
        return False


def _was_used(roots: tuple[Root | GuardedCache, GuardedCache, int]) -> bool:
    """Returns whether a second call ran an entry."""
    holder, region, shared = roots
    return holder.hot is not None or region.shared != shared
