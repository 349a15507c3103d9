"""The names that generated modules find in their namespace.

The text of a cache entry names only these, its constants and its state.
"""

from __future__ import annotations

import importlib
import math
import operator
import sys
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.bytecode.frame import NULL
from tracer_core.bytecode.resume_points import MISS
from tracer_core.bytecode.tracebacks import call_from, calling_code
from tracer_core.contract.branch_prediction import commit_region
from tracer_core.debug.profiling import profiled
from tracer_core.errors import TracerError
from tracer_core.execution.entry.resume_function import GRAPH_RAISED, HOOK_RAISED, Continuation
from tracer_core.fx_capture.data_errors import AssertionFailed
from tracer_core.guards.fast_path_guard import Checked
from tracer_core.guards.guard import data_of, exact_members, function_is, same_objects
from tracer_core.guards.learned_tensors import watch_tensors
from tracer_core.guards.source import payload
from tracer_core.guards.tensor_guard import subclass_is, tensor_is
from tracer_core.reconstruct.runtime import NAMES
from tracer_core.torch_private import needed, settings


def alias_groups(pointers: Sequence[int]) -> list[int]:
    """Returns the index of the first occurrence of each pointer."""
    first: dict[int, int] = {}
    return [first.setdefault(pointer, i) for i, pointer in enumerate(pointers)]


def memories(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns the addresses of the tensors' storages: one address for storages that overlap."""
    storages = list(map(_STORAGE, tensors))
    places = list(map(_STORAGE_ADDRESS, storages))
    if all(map(_OF_TORCH, storages)):
        return places
    ends = [at + storage.nbytes() for at, storage in zip(places, storages, strict=True)]
    start, end = 0, 0
    for i in sorted(range(len(places)), key=places.__getitem__):
        start = places[i] if places[i] >= end else start
        places[i], end = start, max(end, ends[i])
    return places


#: Methods of a tensor and of its storage, called for hundreds of tensors in a training step.
_STORAGE = operator.methodcaller("untyped_storage")
_STORAGE_ADDRESS = operator.methodcaller("data_ptr")
#: False of memory that an array or another library owns.
_OF_TORCH = operator.methodcaller("resizable")


def hold_apart(
    others: Sequence[frozenset[int]], tensors: Sequence[torch.Tensor], groups: Sequence[int]
) -> bool:
    """Returns whether tensors share no storage of `others`, and storages with each other as `groups`
    (`alias_groups`) says."""
    result = memories(tensors)
    apart = all(other.isdisjoint(result) for other in others)
    return apart and alias_groups(result) == groups


def are_distinct(objects: Sequence[Any]) -> bool:
    """Returns whether no object occurs twice."""
    return len(set(map(id, objects))) == len(objects)


def are_equal(numbers: Collection[int | float]) -> bool:
    """Returns whether numbers have one type and one value, signs of zero included."""
    first = next(iter(numbers))
    item = len(set(numbers)) == 1 == len(set(map(type, numbers)))
    return item and (first != 0 or len(set(map(repr, numbers))) == 1)


def counters_are_equal(counters: Sequence[torch.Tensor]) -> bool:
    """Returns whether tensors of one element hold the same number."""
    devices = {counter.device for counter in counters}
    if len(devices) > 1 or counters[0].device.type == "cpu":
        return are_equal(list(map(torch.Tensor.item, counters)))
    return are_equal(torch.stack(list(counters)).tolist())  # waits for the device once


def drop_gradients(tensors: Sequence[torch.Tensor]) -> None:
    """Drops the gradients of tensors."""
    for tensor in tensors:
        tensor.grad = None


def unbound_cell(cell: Any) -> bool:
    """Returns whether a closure cell is empty."""
    try:
        cell.cell_contents
    except ValueError:
        return True
    return False


def unset_slot(descriptor: Any, obj: Any) -> bool:
    """Returns whether an object's slot has no value."""
    try:
        descriptor.__get__(obj, type(obj))
    except AttributeError:
        return True
    return False


def _generator_states(generators: Sequence[torch.Generator]) -> list[tuple[Any, torch.Tensor]]:
    return [(generator, generator.get_state()) for generator in generators]


def _set_generator_states(states: Sequence[tuple[Any, torch.Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)


#: Names that few modules use -> module of the tracer, which is imported only for them: it is heavy.
_SELDOM = {
    **dict.fromkeys(
        ("generator_facts", "generator_values", "peeked", "items_left", "counted", "advance_by"),
        "tracer_core.trace.generator_continuations",
    ),
    **dict.fromkeys(("rng_ahead", "run_steps"), "tracer_core.trace.python_rng"),
    "reading": "tracer_core.fx_capture.state_values",
    "single": "tracer_core.fx_capture.known_scalars",
}


def runtime_namespace(text: str) -> dict[str, Any]:
    """Returns the names that a generated module uses. text: its text."""
    return {
        **{name: getattr(importlib.import_module(module), name)
           for name, module in _SELDOM.items() if name in text},
        "watch_tensors": watch_tensors, "call_from": call_from, "calling_code": calling_code,
        "commit_region": commit_region, "MISS": MISS, "NULL": NULL, "Checked": Checked, "Continuation": Continuation,
        "GRAPH_RAISED": GRAPH_RAISED, "AssertionFailed": AssertionFailed, "partial": partial, "sys": sys, "math": math,
        "payload": payload,
        "TracerError": TracerError,
        "HOOK_RAISED": HOOK_RAISED,
        "raised_by_saved_tensors_hook": torch_private.raised_by_saved_tensors_hook,
        "keys": needed.key_set, "is_unbound": unbound_cell, "is_unset": unset_slot,
        "data_of": data_of, "exact_members": exact_members,
        "function_is": function_is,
        "same_objects": same_objects, "tensor_is": tensor_is,
        "subclass_is": subclass_is, "without_class": torch_private.without_class,
        "as_class": torch_private.as_class, "storage_offset": torch_private.storage_offset,
        "alias_groups": alias_groups,
        "memories": memories, "hold_apart": hold_apart,
        "are_distinct": are_distinct, "are_equal": are_equal, "counters_are_equal": counters_are_equal,
        "drop_gradients": drop_gradients,
        "profiler_state": needed.profiler_state, "profiled": profiled,
        "is_grad_enabled": torch.is_grad_enabled,
        "is_inference_mode": torch.is_inference_mode_enabled,
        "default_dtype": torch.get_default_dtype,
        "function_modes": needed.function_modes, "dispatch_modes": needed.dispatch_modes,
        "forward_ad": needed.forward_ad, "jit_tracing": needed.jit_tracing,
        "deterministic": needed.is_deterministic, "autocast": needed.is_autocast_on,
        "rng_state": torch.get_rng_state, "set_rng_state": torch.set_rng_state,
        "generator_states": _generator_states, "set_generator_states": _set_generator_states,
        "autocast_state": torch_private.autocast_state, "run_restoring": settings.run_restoring,
        "put_setting": settings.put, "nest_autocast": settings.nest_autocast,
        "ambient_devices": settings.ambient_devices,
        **NAMES,
        # Names in the repr of dictionary keys.
        "torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan"),
    }  # fmt: skip
