"""Effect table: functions that make, place and take apart DTensors, and placements."""

from __future__ import annotations

from typing import Any

from tracer_core.natives.effects import special_each_of
from tracer_core.trace.tracer import Tracer

_API = "torch.distributed.tensor._api"


@special_each_of(
    _API, "DTensor.from_local", "DTensor.to_local", "DTensor.redistribute", "DTensor.full_tensor"
)
def placed(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    kwargs.pop("async_op", None)  # the wait is in the graph; a later stage moves it
    return tracer.subclasses.placed(function, args, kwargs)


@special_each_of("torch.distributed.tensor.placement_types", "Shard", "Replicate", "Partial")
def placement(tracer: Tracer, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return kind(*args, **kwargs)
