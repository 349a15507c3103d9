"""Symbolic scalars that change between calls (learning rates, step counters), kept outside the CUDA
graphs that use them.

`WithNumbers` wraps a `GraphedRunner` whose run takes a tensor of scalars as its last input. The
device tensor stays at its address, so that CUDA graphs read it in place; calls write it one at a
time, in order, under the lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudagraphs_backend.state import DeviceState
from tracer_core.plugin_api import RunFunction

#: The inputs of a call -> their scalars, in host memory that an asynchronous copy may read later.
Numbers = Callable[[list[Any]], torch.Tensor]


class WithNumbers:
    """Mutable: makes the tensor on the device at the first call."""

    def __init__(
        self,
        runner: RunFunction,
        state: DeviceState,
        numbers: Numbers,
        recapture: Callable[[], None],
    ) -> None:
        self.runner, self.recapture = runner, recapture
        self._state, self._numbers = state, numbers
        self._place: torch.Tensor | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        state = self._state
        values = self._numbers(inputs)
        arguments = [0.0 if isinstance(value, float) else value for value in inputs]
        inputs.clear()  # runners may clear their inputs, which frees them early
        # somebody else's capture: this call's scalars become constants in it
        if state.device.capturing():
            arguments.append(self._constant(values))
            return self.runner(arguments)
        with state.lock:
            state.order()
            arguments.append(self._written(values))
            return self.runner(arguments)

    def _written(self, values: torch.Tensor) -> torch.Tensor:
        if self._place is None:
            with torch.inference_mode(False):
                self._place = torch.empty_like(values, device=self._state.where, pin_memory=False)
        with torch.no_grad():
            return self._place.copy_(values, non_blocking=True)

    def _constant(self, values: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(values, device=self._state.where, pin_memory=False)
        for place, value in zip(result.flatten().unbind(), values.flatten().tolist(), strict=True):
            place.fill_(value)
        return result
