"""Traces ``tensor.data = value``: the tensor is another view of the value's memory from then on.

In the trace the fake of the value, detached, takes the place of the tensor's fake; the graph returns
the value, and each call sets ``data`` after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


def set_data(tracer: Tracer, tensor: torch.Tensor, value: Any) -> bool:
    """Sets ``data`` of a tensor from before the trace; returns whether that can be traced."""
    simple, inputs = tracer.subclasses.data_tensor(tensor), tracer.subclasses.data_tensor(value)
    if not (_is_strided(tracer, simple) and _is_strided(tracer, inputs)):
        return False
    old, new = tracer.recorder.as_fake(simple), tracer.recorder.as_fake(inputs)
    if _is_alias(tracer, old, new):
        return True  # nothing changes
    if torch_private.is_fake(simple) or tensor._is_view() or not _may_set(tracer, old, new):
        return False
    detached = tracer.native_calls.native(torch.Tensor.detach, inputs)
    content = tracer.native_calls.native(torch.Tensor.detach, inputs)
    if content is inputs or not torch_private.is_fake(content):
        return False
    tracer.side_effects.mutations += 1
    tracer.effects.set_content(tensor, detached)
    if simple.requires_grad:
        tracer.recorder.flags_changed.setdefault(simple, tracer.outer_step)
        content.requires_grad_()
    tracer.fakes.replace(simple, content)
    return True


def _is_strided(tracer: Tracer, value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or torch_private.is_subclass(value):
        return False
    return value.layout is torch.strided and not value.is_inference()


def _may_set(tracer: Tracer, old: Any, new: Any) -> bool:
    """Returns whether no gradient can reach the tensor in the graph, and torch takes the value."""
    leaf = old.is_leaf and not (old.requires_grad and torch.is_grad_enabled())
    concrete = not torch_private.has_symbols((old, new))
    outside = not (torch_private.transforms_active() or tracer.recorder.open_regions)
    return leaf and concrete and outside and old.device == new.device


def _is_alias(tracer: Tracer, old: Any, new: Any) -> bool:
    """Returns whether a value was made of the tensor itself by views, and looks alike."""
    if old is new:
        return True
    if (
        torch_private.storage_id(old) != torch_private.storage_id(new)
        or old.dtype is not new.dtype
        or tuple(old.shape) != tuple(new.shape)
        or old.stride() != new.stride()
        or old.storage_offset() != new.storage_offset()
    ):
        return False
    mine, node = tracer.recorder.node_of(old), tracer.recorder.node_of(new)
    while node is not None and node is not mine and node.op != "placeholder":
        node = next(iter(node.all_input_nodes), None)
    return node is mine
