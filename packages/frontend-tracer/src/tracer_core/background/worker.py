"""Threads that work while eager mode serves: one, or as many as `parallel` allows.

Jobs are functions without arguments that do not raise; they begin in the order in which they were
submitted. A thread ends when the queue is empty. An exiting program waits for the running jobs,
which end at their next stage (`tracer_core.debug.stages.interruptible`), and starts no other:
killing a compiler half-way takes the process with it. While a thread works, the interpreter's
switch interval is shorter: each eager operator releases the GIL and would wait 5 ms to get it back.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

#: The switch interval, in seconds, while a thread works; Python's default is 5 ms.
INTERVAL = 2e-4

_lock = threading.Lock()
_jobs: deque[Callable[[], None]] = deque()
_threads: set[threading.Thread] = set()
#: How many threads may work at once.
_limit = 1
#: The threads that wait for them, one entry for each `parallel` that they are in.
_waiting: list[int] = []
#: The switch interval that the program had set when the first thread began, the one that was set
#: then, and how many threads work.
_before, _ours, _working = 0.0, 0.0, 0


def submit(job: Callable[[], None]) -> None:
    """Queues a function."""
    with _lock:
        _jobs.append(job)
        _fill()


@contextlib.contextmanager
def parallel(threads: int) -> Iterator[None]:
    """Context whose caller waits for the jobs: so many threads work at once, where it is more than
    before, and do not give way."""
    global _limit
    with _lock:
        before, _limit = _limit, max(_limit, threads)
        _waiting.append(threading.get_ident())
        _fill()
    try:
        yield
    finally:
        with _lock:
            _limit = before
            _waiting.remove(threading.get_ident())


def is_awaited() -> bool:
    """Whether somebody waits for the jobs, who then need not give way."""
    return bool(_waiting)


def waits_here() -> bool:
    """Whether the thread that asks waits for the jobs (`parallel`)."""
    return threading.get_ident() in _waiting


def is_ending() -> bool:
    """Whether the program is about to exit."""
    return not threading.main_thread().is_alive()


def _fill() -> None:
    """Starts threads for the jobs that wait; the caller holds the lock."""
    for _ in range(0 if is_ending() else min(len(_jobs), _limit - len(_threads))):
        # Python 3.14 may give threads the context of the code that starts them: a compilation's
        run = contextvars.Context().run
        thread = threading.Thread(target=run, args=(_work,), name="tracer-background", daemon=False)
        _threads.add(thread)
        thread.start()


def _work() -> None:
    try:
        while True:
            with _lock:
                if not _jobs or len(_threads) > _limit or is_ending():
                    _threads.discard(threading.current_thread())
                    return
                job = _jobs.popleft()
            with _yielding():
                job()
    finally:  # a job that raises, against the rule, ends its thread alone
        with _lock:
            _threads.discard(threading.current_thread())
            _fill()


@contextlib.contextmanager
def _yielding() -> Iterator[None]:
    """Shortens the switch interval, which belongs to the process, while any thread works; a program
    that sets its own meanwhile keeps that.
    """
    global _before, _ours, _working
    with _lock:
        if not _working:
            _before = sys.getswitchinterval()
            if _before > INTERVAL:
                sys.setswitchinterval(INTERVAL)
            _ours = sys.getswitchinterval()
        _working += 1
    try:
        yield
    finally:
        with _lock:
            _working -= 1
            if not _working and sys.getswitchinterval() == _ours:
                sys.setswitchinterval(_before)


def _after_fork() -> None:
    """Drops the queue in a forked child: the threads and their jobs are the parent's."""
    global _lock, _limit, _working
    if _working and sys.getswitchinterval() == _ours:
        sys.setswitchinterval(_before)
    _lock, _limit, _working = threading.Lock(), 1, 0
    _waiting[:] = [item for item in _waiting if item == threading.get_ident()]
    _threads.clear()
    _jobs.clear()


os.register_at_fork(after_in_child=_after_fork)
