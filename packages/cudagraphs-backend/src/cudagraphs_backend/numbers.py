"""Numbers that change from call to call, outside the recordings that use them: learning rates,
counters of steps.

In: a `GraphedRunner` whose run takes a tensor of numbers as its last input, and a function that
makes this tensor on the host. Out: `WithNumbers`, a runner of the graph's own inputs. What always
holds: the tensor on the device stays at its address, so that recordings read it in place; it is
written in the order of the calls, and by one call at a time until that has launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cudagraphs_backend.state import DeviceState
from tracer_core.plugin_api import RunFunction

#: The inputs of a call -> their numbers on the host, in memory that the device may copy from at its
#: leisure.
Numbers = Callable[[list[Any]], torch.Tensor]


class WithNumbers:
    """Mutable: the tensor on the device is made at the first call."""

    def __init__(self, runner: RunFunction, state: DeviceState, numbers: Numbers) -> None:
        self.runner = runner
        self._state, self._numbers = state, numbers
        self._place: torch.Tensor | None = None

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        state = self._state
        values = self._numbers(inputs)
        given = [0.0 if isinstance(value, float) else value for value in inputs]
        inputs.clear()  # as a runner may: what was handed over is held no longer than needed
        if (
            state.device.capturing()
        ):  # somebody else's recording: numbers of this call are constants of it
            given.append(self._constant(values))
            return self.runner(given)
        with state.lock:
            state.order()
            given.append(self._written(values))
            return self.runner(given)

    def _written(self, values: torch.Tensor) -> torch.Tensor:
        if self._place is None:
            with torch.inference_mode(False):
                self._place = torch.empty_like(values, device=self._state.where, pin_memory=False)
        with torch.no_grad():
            return self._place.copy_(values, non_blocking=True)

    def _constant(self, values: torch.Tensor) -> torch.Tensor:
        made = torch.empty_like(values, device=self._state.where, pin_memory=False)
        for place, value in zip(made.flatten().unbind(), values.flatten().tolist(), strict=True):
            place.fill_(value)
        return made
