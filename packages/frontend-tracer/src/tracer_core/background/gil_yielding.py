"""Lets the program's calls go before background work that needs the interpreter, too.

A thread that compiles holds the GIL most of the time, and each operator of an eager call gives it
away and must get it back: a call of 400 operators took three times as long beside a compilation.
So while a call is `in_foreground`, the background thread waits at its next Python call (it has a
profile function for that). A program that calls without a pause would stop it for ever: after each
`PAUSE` it runs for a `SLICE`.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tracer_core.background.processors import half_the_threads
from tracer_core.background.worker import is_awaited, waits_here
from tracer_core.contract.runner import RunFunction

#: Seconds.
PAUSE, SLICE = 0.04, 0.01

_lock = threading.Lock()
_n_served = 0
_nobody = threading.Event()
_nobody.set()
_here: contextvars.ContextVar[bool] = contextvars.ContextVar("tracer_gives_way", default=False)


def is_background() -> bool:
    """Whether what runs here is background work."""
    return _here.get()


def in_foreground(run: RunFunction) -> RunFunction:
    """Returns `run`, before whose calls background work waits. Where the caller waits for that work,
    they leave it half of the processors."""

    def run_first(inputs: list[Any]) -> Any:
        global _n_served
        with _lock:
            _n_served += 1
            _nobody.clear()
        try:
            if not waits_here():
                return run(inputs)
            with half_the_threads():
                return run(inputs)
        finally:
            with _lock:
                _n_served -= 1
                if not _n_served:
                    _nobody.set()

    return run_first


@contextlib.contextmanager
def yielding_gil() -> Iterator[None]:
    """Context of background work that gives way, unless somebody waits for it or another tool
    profiles the thread."""
    token = _here.set(True)
    ours = sys.getprofile() is None and not is_awaited()
    if ours:
        sys.setprofile(_waiting())
    try:
        yield
    finally:
        if ours:
            sys.setprofile(None)
        _here.reset(token)


def _waiting() -> Callable[..., None]:
    until = 0.0

    def wait(frame: Any, event: str, argument: Any) -> None:
        nonlocal until
        if not _n_served or time.monotonic() < until:
            return
        if not _nobody.wait(PAUSE):
            until = time.monotonic() + SLICE

    return wait


def _after_fork() -> None:
    """Resets what other threads of the parent may have held."""
    global _lock, _n_served, _nobody
    _lock, _n_served, _nobody = threading.Lock(), 0, threading.Event()
    _nobody.set()


os.register_at_fork(after_in_child=_after_fork)
