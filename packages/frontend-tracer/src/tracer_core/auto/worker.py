"""One thread for the work that goes on while eager serves.

In: functions without arguments that do not raise. Out: nothing; they are run one after the other. What always holds:
the thread ends when there is nothing to do; a program that ends waits for the function that is running, and no
further one is begun (a compiler that is killed half-way takes the process with it).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

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
        job()


def _after_fork() -> None:
    """In a child: the thread and what it had to do are the parent's."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None
    _jobs.clear()


os.register_at_fork(after_in_child=_after_fork)
