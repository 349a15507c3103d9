"""Effect table: functions that make, place and take apart DTensors, and placements."""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.native_effects.effects import special_each_of
from tracer_core.trace.tracer import Tracer

_TENSORS = "torch.distributed.tensor"


@special_each_of(
    _TENSORS,
    "DTensor.from_local",
    "DTensor.to_local",
    "DTensor.redistribute",
    "DTensor.full_tensor",
)
def dtensor_call(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    if kwargs.get("run_check") or any(arg is True for arg in args[3:]):
        tracer.break_graph("processes", "DTensor.from_local(run_check=True)")
    kwargs.pop("async_op", None)  # the wait is in the graph; a later stage moves it
    return tracer.subclasses.dtensor_call(function, args, kwargs)


@special_each_of(_TENSORS, "distribute_tensor")
def distribute(tracer: Tracer, function: Any, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The parts of a tensor that every process has; what one of them scatters is no collective that
    a graph holds."""
    if kwargs.get("src_data_rank", 0) is not None:
        tracer.break_graph("processes", "distribute_tensor() sends from one process to the others")
    if torch.is_grad_enabled() and torch_private.requires_grad_now(tensor):
        tracer.break_graph("tensor_subclass", "distribute_tensor() makes a leaf of autograd")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return tracer.subclasses.dtensor_call(function, (tensor, *args), kwargs)


@special_each_of(
    "torch.distributed.device_mesh",
    *(f"DeviceMesh.{name}.fget" for name in ("ndim", "shape", "device_type", "mesh_dim_names")),
    *(f"DeviceMesh.{name}" for name in ("size", "get_local_rank", "get_rank", "get_coordinate")),
)
def mesh_question(tracer: Tracer, function: Any, mesh: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a mesh, whose processes and groups are guarded, says of itself and of this process."""
    if not torch_private.is_mesh(mesh):
        tracer.break_graph("unknown_native", f"a mesh's question is put to a {type(mesh).__name__}")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    tracer.subclasses.guard_mesh(mesh)
    return function(mesh, *args, **kwargs)


_KINDS = ("Shard", "Replicate", "Partial")
_QUESTIONS = ("is_shard", "is_replicate", "is_partial")


@special_each_of(
    _TENSORS, *(f"{kind}.{name}" for kind in ("Placement", *_KINDS) for name in _QUESTIONS)
)
def question(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What a placement, a constant, says of itself."""
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return function(*args, **kwargs)


@special_each_of(_TENSORS, *_KINDS)
def placement(tracer: Tracer, kind: Any, /, *args: Any, **kwargs: Any) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return kind(*args, **kwargs)
