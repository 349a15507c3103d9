"""The modes of the thread in which a graph was captured, for the thread in which it is tried.

In: nothing. Out: `Ambient`. What always holds: after `entered` the thread's modes are as they were
before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from tracer_core.torch_private import settings


class Ambient:
    """Made in the one thread, entered in the other."""

    def __init__(self) -> None:
        self._inference = torch.is_inference_mode_enabled()
        self._devices = settings.ambient_devices() or ()
        self._settings = {
            name: value
            for name, value in settings.snapshot().items()
            if name == "grad" or settings.SETTINGS[name].autocast  # what each thread has for itself
        }

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, they are as they were; afterwards as they are now."""
        now = {name: settings.SETTINGS[name].get() for name in self._settings}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self._inference))
            for device in self._devices:
                stack.enter_context(torch.device(device))
            settings.restore(self._settings)
            try:
                yield
            finally:
                settings.restore(now)
