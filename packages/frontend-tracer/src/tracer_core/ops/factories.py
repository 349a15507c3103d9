"""Factories whose kernels take their size as an integer, as an operator that takes a symbolic one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.ops.definitions import declare, implement
from tracer_core.torch_private.names import names

_SIZED = declare(
    "sized(str name, SymInt size, float[] numbers, *, ScalarType? dtype=None, Device? device=None)"
    " -> Tensor"
)
#: Factory -> the position of its size among its numbers.
SIZED: dict[Any, int] = {
    **dict.fromkeys(names("linspace logspace"), 2),
    **dict.fromkeys(names("fft.fftfreq fft.rfftfreq hann_window hamming_window kaiser_window"), 0),
}
_BY_NAME = {function.__name__: function for function in SIZED}


def sized(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Returns the call of the operator for a factory's call with a symbolic size, or None."""
    place, options = SIZED[func], dict(kwargs)
    if len(args) == place and "steps" in options:
        args = (*args, options.pop("steps"))
    numbers = [*args[:place], *args[place + 1 :]]
    if len(args) <= place or type(args[place]) is not torch.SymInt:
        return None
    if options.keys() - {"dtype", "device"} or {*map(type, numbers)} - {int, float}:
        return None
    return call_sized, (func.__name__, args[place], [*map(float, numbers)]), options


def call_sized(name: str, size: Any, numbers: Sequence[float], **options: Any) -> torch.Tensor:
    """Calls the operator. Target of a graph node."""
    result: torch.Tensor = _SIZED(name, size, numbers, **options)
    return result


def _kernel(name: str, size: int, numbers: Sequence[float], **options: Any) -> torch.Tensor:
    function, place = _BY_NAME[name], SIZED[_BY_NAME[name]]
    result: torch.Tensor = function(*numbers[:place], size, *numbers[place:], **options)
    return result


def _fake(name: str, size: int, numbers: Sequence[float], **options: Any) -> torch.Tensor:
    return torch.empty(size // 2 + 1 if "rfft" in name else size, **options)


implement(_SIZED, _kernel, _fake)
