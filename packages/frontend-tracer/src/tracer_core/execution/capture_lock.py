"""Which thread traces. Tracing changes real objects and undoes it, so calls of other threads wait."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

import torch

from tracer_core import torch_private
from tracer_core.bytecode.host_builtins import are_replaced, use_own_builtins
from tracer_core.switch import SWITCHED_OFF, reason_for_eager
from tracer_core.torch_private import settings
from tracer_core.torch_private.needed import dispatch_modes, function_modes

use_own_builtins(globals())


class CaptureState:
    """The tracing thread of this process. Mutable."""

    __slots__ = ("lock", "thread", "epoch")

    def __init__(self) -> None:
        #: Held during a capture, and while cache entries are replaced.
        self.lock = threading.RLock()
        #: The thread that is tracing now, or None.
        self.thread: int | None = None
        #: How often a capture has begun or ended. A lookup since which this changed may have missed
        #: because another thread's trace had changed what the guards read, or because its entry
        #: came afterwards.
        self.epoch = 0

    def wait_for_others(self) -> None:
        """Returns once no other thread traces."""
        if self.thread is not None and self.thread != threading.get_ident():
            with self.lock:
                pass

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Marks this thread as the tracing one. The caller holds the lock."""
        previous, self.thread = self.thread, threading.get_ident()
        try:
            yield
        finally:
            self.thread = previous


STATE = CaptureState()


def _after_fork() -> None:
    """Resets the lock in a forked child: the thread that held it does not exist there."""
    STATE.lock, STATE.thread = threading.RLock(), None


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Context of a trace that makes no cache entry: compiled calls on other threads wait."""
    with STATE.lock:
        STATE.epoch += 1
        try:
            with STATE.tracing():
                yield
        finally:
            STATE.epoch += 1


def captures_so_far() -> int:
    """Returns a number that every capture of any compiled function increases."""
    return STATE.epoch


#: Why tracing is not possible -> whether this is so now.
_OBSTACLES: dict[str, Callable[[], bool]] = {
    "under a TorchFunctionMode": lambda: (
        function_modes() != 0 and settings.ambient_devices() is None
    ),
    "under a TorchDispatchMode": lambda: dispatch_modes() != 0,
    "inside a transform of torch.func": torch_private.transforms_active,
    "where tensors may have tangents (forward-mode AD)": torch_private.duals_active,
    "under torch.jit.trace": lambda: bool(torch.jit.is_tracing()),
    "inside the capture of another function": lambda: STATE.thread == threading.get_ident(),
    "while names of builtins are replaced": are_replaced,
    "in a block of tracer_core.disabled": lambda: (
        bool(SWITCHED_OFF) and reason_for_eager() is not None
    ),
}


def obstacle() -> str | None:
    """Returns why tracing is not possible now, or None."""
    return next((reason for reason, holds in _OBSTACLES.items() if holds()), None)


def can_trace() -> bool:
    """Returns whether tracing is possible."""
    return not any(holds() for holds in _OBSTACLES.values())
