"""Lets calls of the program and timed calls take turns, so that neither disturbs the other's time.

Calls of the program run concurrently; a timed call runs while none of them does. A call of the
program waits for one timed call at most, and no call waits longer than `MAX_TURN_SECONDS`, so nothing can
deadlock (an operator that calls the same compiled function, a call that takes minutes).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from tracer_core.limits import MAX_TURN_SECONDS


class AlternatingRounds:
    """Tracks who is running. Mutable."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._served = self._waiting = 0
        self._timing = False

    @contextlib.contextmanager
    def in_foreground(self) -> Iterator[None]:
        """Wraps a call of the program."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._timing, MAX_TURN_SECONDS)
            self._waiting -= 1
            self._served += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._served -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Wraps a timed call."""
        with self._changed:
            # those that waited for the one before
            self._changed.wait_for(lambda: self._waiting == 0, MAX_TURN_SECONDS)
            self._timing = True
            self._changed.wait_for(lambda: self._served == 0, MAX_TURN_SECONDS)
        try:
            yield
        finally:
            with self._changed:
                self._timing = False
                self._changed.notify_all()
