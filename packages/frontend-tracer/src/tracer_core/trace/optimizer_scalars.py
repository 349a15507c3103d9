"""Step counters that torch.optim reads from one-element tensors, computed before the graph runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracer_core.fx_capture.known_scalars import ROUNDING, Applied, ScalarEntry, second
from tracer_core.guards.source import SourceKind
from tracer_core.trace.symbolic_scalars import SYMBOLS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


def is_optimizers(tracer: Tracer) -> bool:
    """Returns whether the current code is torch.optim's."""
    name = tracer.frames[-1].globals.get("__name__", "")
    return isinstance(name, str) and name.startswith("torch.optim.")


def number_in(tracer: Tracer, tensor: Any) -> Any:
    """Returns the number in a tensor that an optimizer reads, or None."""
    return counter_in(tracer, tensor) if is_optimizers(tracer) else None


def counter_in(tracer: Tracer, tensor: Any) -> Any:
    """Returns the number in a step counter, or None."""
    value = tracer.recorder.scalars.value(tracer.recorder.as_fake(tensor))
    return None if value is None else _number(tracer, value)


def _number(tracer: Tracer, value: Any) -> Any:
    """Returns the number, or its symbol, for an expression of `recorder/scalars`."""
    if isinstance(value, ScalarEntry):
        tracer.provenance.follows_late = True
        source = tracer.provenance.sources.make(
            tracer.provenance.source_of(value.tensor), SourceKind.NUMBER
        )
        number = value.tensor.item()
        tracer.shapes.numbers[source.expression] = number
        return tracer.provenance.read_varying(number, source, always=True)
    if not isinstance(value, Applied):
        return value
    rounding = ROUNDING[value.dtype]
    operands = [_number(tracer, operand) for operand in value.operands]
    if rounding is None:
        return _applied(tracer, value.function, *operands)
    if value.function is second:
        return _applied(tracer, rounding, operands[1])
    rounded = [_applied(tracer, rounding, operand) for operand in operands]
    return _applied(tracer, rounding, _applied(tracer, value.function, *rounded))


def _applied(tracer: Tracer, function: Any, *operands: Any) -> Any:
    if any(type(operand) in SYMBOLS for operand in operands):
        return tracer.scalars.operate(function, operands)
    return function(*operands)
