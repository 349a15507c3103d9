"""One background thread that runs jobs one after the other while eager serves.

Jobs are functions without arguments that do not raise. The thread ends when the queue is empty. An
exiting program waits for the running job and starts no other, because killing a compiler half-way
takes the process with it. While the thread works, the interpreter's switch interval is shorter:
each eager operator releases the GIL and would wait 5 ms to get it back.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

#: The switch interval, in seconds, while this thread works; Python's default is 5 ms.
INTERVAL = 2e-4

_lock = threading.Lock()
_jobs: deque[Callable[[], None]] = deque()
_thread: threading.Thread | None = None


def submit(job: Callable[[], None]) -> None:
    """Queues a function."""
    global _thread
    with _lock:
        _jobs.append(job)
        if _thread is None:
            # Python 3.14 may give threads the context of the code that starts them: a compilation's
            run = contextvars.Context().run
            _thread = threading.Thread(target=run, args=(_work,), name="tracer-auto", daemon=False)
            _thread.start()


def is_ending() -> bool:
    """Whether the program is about to exit."""
    return not threading.main_thread().is_alive()


def _work() -> None:
    global _thread
    while True:
        with _lock:
            if not _jobs or is_ending():
                _thread = None
                return
            job = _jobs.popleft()
        with _yielding():
            job()


@contextlib.contextmanager
def _yielding() -> Iterator[None]:
    """Shortens the switch interval, which belongs to the process; a program that sets its own
    meanwhile keeps that.
    """
    before = sys.getswitchinterval()
    if before <= INTERVAL:
        yield
        return
    sys.setswitchinterval(INTERVAL)
    ours = sys.getswitchinterval()
    try:
        yield
    finally:
        if sys.getswitchinterval() == ours:
            sys.setswitchinterval(before)


def _after_fork() -> None:
    """Drops the queue in a forked child: the thread and its jobs are the parent's."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _jobs.clear()


os.register_at_fork(after_in_child=_after_fork)
