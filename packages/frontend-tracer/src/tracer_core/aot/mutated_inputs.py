"""Writes of a captured graph to its inputs, which the functional graph makes with a trailing
``copy_`` each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from tracer_core import torch_private
from tracer_core.aot import view_aliasing
from tracer_core.aot.aten_recorder import AtenRecorder
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.torch_private.names import operators

aten = operators("aten")


def input_writes(
    recorder: AtenRecorder, wrappers: Mapping[int, Any], captured: fx.Graph
) -> list[tuple[int, Any]]:
    """Returns (index, functional wrapper) of each input that the graph writes to.

    Args:
        recorder: Holds the inputs and their placeholders.
        wrappers: id of a fake tensor -> its functional wrapper.
        captured: The graph as the tracer captured it.

    Raises:
        LoweringUnsupported: The graph changes an input's sizes, strides or storage, or writes to one
            that shares memory with another.
    """
    writes, storages = [], Counter[int]()
    for index, value in enumerate(recorder.inputs):
        wrapper = wrappers.get(id(value))
        if wrapper is None:
            continue
        storages[torch_private.storage_id(value)] += 1
        if torch_private.has_metadata_mutation(wrapper):
            name = recorder.placeholders[index].name
            reason = f"the graph changes sizes, strides or storage of its input {name}"
            raise LoweringUnsupported(reason)
        if torch_private.has_data_mutation(wrapper):
            writes.append((index, wrapper))
    for index, _ in writes:
        storage = torch_private.storage_id(recorder.inputs[index])
        if storages[storage] > 1:
            name = recorder.placeholders[index].name
            raise LoweringUnsupported(
                f"the graph writes to its input {name}, which shares memory with another",
                nodes=view_aliasing.writers(captured, {storage}),
            )
    return writes


def write_back(recorder: AtenRecorder, writes: Sequence[tuple[int, Any]]) -> tuple[int, ...]:
    """Adds a trailing ``copy_`` for each write; returns the indices of the inputs written to."""
    tensors = (value for value in recorder.inputs if isinstance(value, torch.Tensor))
    inputs = set(map(torch_private.storage_id, tensors))
    pending = []
    for index, wrapper in writes:
        value = torch_private.functional_value(wrapper)
        if recorder.node_of(value) is recorder.placeholders[index]:
            continue
        if torch_private.storage_id(value) in inputs:  # another copy_ may change it first
            value = aten.clone.default(value)
        pending.append((index, recorder.node_of(value)))
    for index, node in pending:
        placeholder = recorder.placeholders[index]
        recorder.call(aten.copy_.default, (placeholder, node), {}, placeholder.meta["val"])
    return tuple(index for index, _ in pending)
