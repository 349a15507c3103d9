"""Collectives in the graph: torch.distributed's in-place ones as functional ones and a copy, and the
functions that the functional ones call.

A collective is one node that no engine looks into, and a node that waits for it. Its group is the
group's name, guarded. Gradients of functional collectives are torch's. The in-place ones have none:
where a tensor needs one, eager warns, and the graph breaks. What the process group would refuse or
do to the memory of strided tensors, it does: the graph breaks, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tracer_core import torch_private
from tracer_core.native_effects.effects import special, special_each
from tracer_core.native_effects.polyfills import FinishedWork
from tracer_core.torch_private.names import names, operators
from tracer_core.trace.guarded_calls import applied, query, query_call
from tracer_core.trace.process_groups import name_of, rank_and_size, refuse
from tracer_core.trace.tracer import Tracer


def _found(paths: str) -> tuple[Any, ...]:
    """Returns functions below torch; some are in some releases only, none in a build without
    torch.distributed."""
    return names(paths, in_every_build=False) if dist.is_available() else ()


_ops = operators("_c10d_functional")
_FUNCTIONAL = "distributed._functional_collectives"


# -- groups --


@special(*_found(f"{_FUNCTIONAL}._resolve_group {_FUNCTIONAL}._resolve_group_name"))
def resolve_group(tracer: Tracer, group: Any, tag: Any = "") -> str:
    if isinstance(group, list):
        refuse("a group is given by its ranks")
    return name_of(tracer, group)


@special(*_found(f"{_FUNCTIONAL}._group_or_group_name"))
def group_or_group_name(tracer: Tracer, group: Any) -> str:
    return name_of(tracer, group)


@special_each(*_found("distributed.distributed_c10d._get_group_size_by_name"))
def group_size(tracer: Tracer, function: Any, name: Any) -> int:
    return int(rank_and_size(tracer, name)[1])


def _world(tracer: Tracer, function: Any, cls: Any) -> Any:
    """``dist.group.WORLD``"""
    return query(tracer, torch_private.default_group)


for _meta in _found("distributed.distributed_c10d._WorldMeta.WORLD"):
    if isinstance(_meta, property) and _meta.fget is not None:
        special_each(_meta.fget)(_world)


# -- functional collectives --


#: Where torch traces, it asks for sizes that depend on data, and for offsets in memory.
special(*_found(f"{_FUNCTIONAL}._are_we_tracing"))(lambda tracer: False)


@special(*_found(f"{_FUNCTIONAL}._maybe_wrap_tensor"))
def wait(tracer: Tracer, tensor: Any) -> Any:
    """Waits where eager returns a tensor that waits when it is used; a later stage moves the wait to
    the first use."""
    return tracer.native_calls.call_torch(_ops.wait_tensor.default, [tensor], {})


# -- collectives that write to their arguments --


def _operands(tracer: Tracer, written: Sequence[Any], read: Any) -> None:
    """Breaks unless the tensors are plain, of one dtype, contiguous, and outside of autograd."""
    tensors = [*written, read]
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        refuse("a collective of what is no tensor")
    fakes = list(map(tracer.recorder.as_fake, tensors))
    first = fakes[0]
    if torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes):
        refuse("a collective in place of a tensor that requires a gradient")
    for fake in fakes:
        if fake.dtype != first.dtype or fake.device != first.device or fake.is_complex():
            refuse("a collective of different or complex dtypes, or devices")
        if fake.layout is not torch.strided or not fake.is_contiguous():
            refuse("a collective of a tensor that is not contiguous")


def _run(tracer: Tracer, function: Any, *args: Any) -> Any:
    """Records an operator or method."""
    return tracer.native_calls.call_torch(function, list(args), {})


def _write(tracer: Tracer, target: Any, value: Any) -> None:
    shape = tuple(tracer.recorder.as_fake(target).shape)
    _run(tracer, torch.Tensor.copy_, target, _run(tracer, torch.Tensor.view, value, shape))


def _reduction(tracer: Tracer, op: Any) -> str:
    """Returns the name of a reduction, guarded unless it is a function's default."""
    known = tracer.provenance.source_of(op) is not None
    find = torch_private.reduction_name
    name = applied(tracer, find, op) if known else find(op)
    if not name:
        refuse("a reduction that functional collectives do not know")
    return str(name)


def _splits(tracer: Tracer, value: Any, tensor: Any, size: int) -> list[Any]:
    """Returns the sizes of what is sent to, or comes from, each rank."""
    if value is not None and not isinstance(value, (list, tuple)):
        refuse("sizes of parts that are no list")
    sizes = tracer.reads.items(value) if value else []
    if sizes:
        return [tracer.scalars.concrete(size) for size in sizes]
    rows = tracer.recorder.as_fake(tensor).shape[0]
    if rows % size:
        refuse("all_to_all of rows that do not divide among the ranks")
    return [rows // size] * size


def _require_parts(tracer: Tracer, part: Any, full: Any, size: int) -> None:
    """Breaks unless one tensor is `size` of the other, one after the other; or stacked, which NCCL
    accepts."""
    part, full = map(tracer.recorder.as_fake, (part, full))
    stacked = full.device.type == "cuda" and full.shape == (size, *part.shape)
    after = part.dim() and full.shape == (part.shape[0] * size, *part.shape[1:])
    if not (after or stacked):
        refuse("a collective of tensors whose sizes do not fit")


def _flat(tracer: Tracer, tensor: Any) -> Any:
    return _run(tracer, torch.Tensor.view, tensor, -1)


def _all_reduce(tracer: Tracer, name: str, tensor: Any, op: Any) -> None:
    _operands(tracer, [tensor], tensor)
    reduction = _reduction(tracer, op)
    _write(tracer, tensor, wait(tracer, _run(tracer, _ops.all_reduce.default, tensor, reduction,
                                             name)))  # fmt: skip


def _broadcast(tracer: Tracer, name: str, tensor: Any, src: Any, group_src: Any) -> None:
    _operands(tracer, [tensor], tensor)
    if (src is None) == (group_src is None):
        refuse("broadcast from no rank, or from two")
    if group_src is None:
        group_src = query_call(
            tracer, torch_private.rank_within, name, tracer.scalars.concrete(src)
        )
    source = tracer.scalars.concrete(group_src)
    _write(tracer, tensor, wait(tracer, _run(tracer, _ops.broadcast.default, tensor, source,
                                             name)))  # fmt: skip


def _gathered(tracer: Tracer, name: str, tensor: Any, size: int) -> Any:
    flat = _flat(tracer, tensor)
    return wait(tracer, _run(tracer, _ops.all_gather_into_tensor.default, flat, size, name))


def _all_gather_into(tracer: Tracer, name: str, output: Any, tensor: Any) -> None:
    _operands(tracer, [output], tensor)
    size = rank_and_size(tracer, name)[1]
    _require_parts(tracer, tensor, output, size)
    _write(tracer, output, _gathered(tracer, name, tensor, size))


def _all_gather(tracer: Tracer, name: str, outputs: Any, tensor: Any) -> None:
    if type(outputs) is not list:
        refuse("all_gather into what is no list")
    parts = tracer.reads.items(outputs)
    _operands(tracer, parts, tensor)
    size = rank_and_size(tracer, name)[1]
    shape = tracer.recorder.as_fake(tensor).shape
    if len(parts) != size or any(tracer.recorder.as_fake(part).shape != shape for part in parts):
        refuse("all_gather into parts of other sizes")
    rows = _run(tracer, torch.Tensor.view, _gathered(tracer, name, tensor, size), (size, -1))
    for number, part in enumerate(parts):
        _write(tracer, part, _run(tracer, torch.Tensor.select, rows, 0, number))


def _reduce_scatter(tracer: Tracer, name: str, output: Any, tensor: Any, op: Any) -> None:
    _operands(tracer, [output], tensor)
    size = rank_and_size(tracer, name)[1]
    _require_parts(tracer, output, tensor, size)
    flat, reduction = _flat(tracer, tensor), _reduction(tracer, op)
    result = _run(tracer, _ops.reduce_scatter_tensor.default, flat, reduction, size, name)
    _write(tracer, output, wait(tracer, result))


def _all_to_all(
    tracer: Tracer, name: str, output: Any, tensor: Any, out_splits: Any, in_splits: Any
) -> None:
    _operands(tracer, [output], tensor)
    size = rank_and_size(tracer, name)[1]
    if not all(tracer.recorder.as_fake(value).dim() for value in (output, tensor)):
        refuse("all_to_all of tensors without dimensions")
    to, of = _splits(tracer, out_splits, output, size), _splits(tracer, in_splits, tensor, size)
    fake, source = map(tracer.recorder.as_fake, (output, tensor))
    fits = sum(to) == fake.shape[0] and sum(of) == source.shape[0] and len(to) == len(of) == size
    if not fits or fake.shape[1:] != source.shape[1:]:
        refuse("all_to_all of parts that do not fit")
    result = _run(tracer, _ops.all_to_all_single.default, tensor, to, of, name)
    _write(tracer, output, wait(tracer, result))


#: Function of torch.distributed -> what records it, and the names of the arguments that this gets.
_IN_PLACE: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "all_reduce": (_all_reduce, ("tensor", "op")),
    "broadcast": (_broadcast, ("tensor", "src", "group_src")),
    "all_gather": (_all_gather, ("tensor_list", "tensor")),
    "all_to_all_single": (
        _all_to_all, ("output", "input", "output_split_sizes", "input_split_sizes"),
    ),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_single"),
        (_all_gather_into, ("output_tensor", "input_tensor")),
    ),
    **dict.fromkeys(
        ("reduce_scatter_tensor", "reduce_scatter_single"),
        (_reduce_scatter, ("output", "input", "op")),
    ),
}  # fmt: skip


def _in_place(
    record: Callable[..., None], wanted: tuple[str, ...], signature: inspect.Signature
) -> Callable[..., Any]:
    def handler(tracer: Tracer, /, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        name = name_of(tracer, arguments["group"])
        record(tracer, name, *(arguments[item] for item in wanted))
        if not arguments["async_op"]:
            return None
        return tracer.native_calls.note_allocation(FinishedWork())

    return handler


def _register() -> None:
    for name, (record, wanted) in _IN_PLACE.items():
        for function in _found(f"distributed.{name}"):
            signature = inspect.signature(function)
            if {*wanted, "group", "async_op"} <= signature.parameters.keys():
                special(function)(_in_place(record, wanted, signature))


_register()
