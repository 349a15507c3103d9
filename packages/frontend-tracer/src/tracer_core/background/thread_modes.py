"""Carries a thread's torch modes from where a graph was captured to the thread that compiles or
benchmarks it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tracer_core.torch_private import settings


class Ambient:
    """The modes; created in one thread, entered in the other."""

    def __init__(self) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._devices = settings.ambient_devices() or ()
        self._settings = {
            name: value
            for name, value in settings.snapshot().items()
            if settings.is_of_thread(name)
        }

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Applies the modes inside the block; restores the thread's own afterwards."""
        now = {name: settings.SETTINGS[name].get() for name in self._settings}
        with contextlib.ExitStack() as stack:
            stack.enter_context(settings.as_guest())
            stack.enter_context(torch.inference_mode(self._inference))
            for device in self._devices:
                stack.enter_context(torch.device(device))
            settings.restore(self._settings)
            try:
                yield
            finally:
                settings.restore(now)
