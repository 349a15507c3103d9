"""One thread for the work that goes on while eager serves.

In: functions without arguments that do not raise. Out: nothing; they are run one after the other.
What always holds: the thread ends when there is nothing to do; a program that ends waits for the
function that is running, and no further one is begun (a compiler that is killed half-way takes the
process with it). While it works, Python's threads take turns more often: each operator of eager
gives the interpreter's lock away and would wait 5 ms to have it back.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

#: Seconds after which a waiting thread may ask for the interpreter's lock while this one works;
#: Python's own are 5 ms.
INTERVAL = 2e-4

_lock = threading.Lock()
_jobs: deque[Callable[[], None]] = deque()
_thread: threading.Thread | None = None


def submit(job: Callable[[], None]) -> None:
    """Has a function run in the thread."""
    global _thread
    with _lock:
        _jobs.append(job)
        if _thread is None:
            _thread = threading.Thread(target=_work, name="tracer-auto", daemon=False)
            _thread.start()


def is_ending() -> bool:
    """Whether the program is about to end."""
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
    """The interval is the process's: a program that sets its own meanwhile keeps that."""
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
    """In a child: the thread and what it had to do are the parent's."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _jobs.clear()


os.register_at_fork(after_in_child=_after_fork)
