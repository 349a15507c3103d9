"""Reads numbers and truths from tensors whose value is known before the graph runs
(fx_capture/state_values.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture import state_values
from tracer_core.guards.source import SourceKind
from tracer_core.limits import MAX_STATE_VALUES

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Settings on which the operators of a reading do not depend.
_WITHOUT_INFLUENCE = frozenset(
    ["grad", "autocast_cuda_dtype", "autocast_cuda_enabled", "autocast_cache"]
)  # fmt: skip


def value_of(tracer: Tracer, tensor: Any, as_bool: bool = False) -> Any:
    """Returns the number, truth or symbol that is the one element of a tensor, guarded; or None where
    only the graph knows it. as_bool: the truth of that element."""
    recorder, provenance = tracer.recorder, tracer.provenance
    tensor = tracer.fakes.current(tensor)
    sequences = recorder.packed.number(tensor)
    if sequences is not None:
        return bool(sequences) if as_bool else sequences
    if tracer.nesting or recorder.program_modes or recorder.devices:
        return None
    if not recorder.settings_written <= _WITHOUT_INFLUENCE or torch.is_autocast_enabled("cpu"):
        return None
    if torch_private.transforms_active() or torch_private.is_subclass(tensor):
        return None
    reading = state_values.reading_of(recorder, tensor, as_bool)
    if reading is None:
        return None
    value = reading.now()
    if not reading.sources:
        return value  # of constants of the program's code
    provenance.follows_late = True
    recorder.read_early.update(zip(reading.sources, reading.tensors, strict=True))
    base, *others = reading.sources
    source = provenance.sources.make(base, SourceKind.READING, (reading.text, tuple(others)))
    if type(value) is bool:
        before = tracer.shapes.specializations.numbers.get(source.expression, [])
        if len(before) >= MAX_STATE_VALUES and len(set(before)) > 1:
            crossed("MAX_STATE_VALUES")
            return None
        tracer.shapes.varies(value, source)
        return provenance.read(value, source)
    return provenance.read_varying(value, source)


def _whole(tracer: Tracer, tensor: Any) -> Any:
    value = value_of(tracer, tensor)
    if type(value) in (float, torch.SymFloat):
        return (
            tracer.scalars.operate(int, (value,)) if type(value) is torch.SymFloat else int(value)
        )
    return int(value) if type(value) is bool else value


def _floating(tracer: Tracer, tensor: Any) -> Any:
    value = value_of(tracer, tensor)
    if type(value) is torch.SymInt:
        return tracer.scalars.operate(float, (value,))
    return value if value is None or type(value) is torch.SymFloat else float(value)


def _index(tracer: Tracer, tensor: Any) -> Any:
    return None if _is_floating(tracer, tensor) else _whole(tracer, tensor)


def _list(tracer: Tracer, tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or tracer.fakes.current(tensor).dim():
        return None
    return value_of(tracer, tensor)


def _is_floating(tracer: Tracer, tensor: Any) -> bool:
    return bool(tracer.fakes.current(tensor).dtype.is_floating_point)


#: Name of a method -> how it reads the one element of a tensor.
READS: dict[str, Callable[[Tracer, Any], Any]] = {
    "item": value_of, "tolist": _list, "__int__": _whole, "__float__": _floating,
    "__index__": _index,
    "__bool__": lambda tracer, tensor: value_of(tracer, tensor, as_bool=True),
}  # fmt: skip


def index_in(tracer: Tracer, tensor: Any) -> Any:
    """Returns the integer in a tensor that is used as an index or a size, or None."""
    tensor = tracer.fakes.current(tensor)
    if tensor.dim() or tensor.dtype is torch.bool or _is_floating(tracer, tensor):
        return None
    return value_of(tracer, tensor)
