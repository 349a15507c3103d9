"""Capturability check: finds, before anything runs, the operators of a lowered graph that a CUDA
graph cannot capture.

These wait for the device, work on another device, or have data-dependent sizes. An operator that
this check misses makes the capture fail; the graph then runs plainly."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cudagraphs_backend.collectives import WAIT
from cudagraphs_backend.state import states
from cudagraphs_backend.torch_private import OpOverload, storage_key
from tracer_core.plugin_api import Trait, communicates, operators, overloads_with, reasons

aten = operators("aten")

#: Operators that read a value back or wait for the device while they run -> why.
WAITS = reasons(Trait.BLOCKS)

_DATA_TAGS = tuple(
    getattr(torch.Tag, name)
    for name in ("data_dependent_output", "dynamic_output_shape", "cudagraph_unsafe")
    if hasattr(torch.Tag, name)
)

#: Operators that read their operand's storage by explicit strides and an offset.
_BY_OFFSET = frozenset(
    {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
)
_INDEXING = overloads_with(Trait.COUNTS_MASKS)


def supports(node: torch.fx.Node) -> str | None:
    """Returns why an operator cannot be captured, or None."""
    target = node.target
    if target in WAITS and not _is_told(node):
        return f"cannot be recorded: {WAITS[target]}"
    if target in _INDEXING:  # tagged for masks, whatever the index
        if any(_is_mask(index) for index in node.args[1]):  # type: ignore[union-attr]
            return "cannot be recorded: a mask as an index is counted on the host"
    elif any(tag in getattr(target, "tags", ()) for tag in _DATA_TAGS) and not _is_told(node):
        return "cannot be recorded: its result's size or value is read on the host"
    if target in _BY_OFFSET and _is_of_an_input(node.args[0]) and not _is_within(node):  # type: ignore[arg-type]
        return (
            "cannot be recorded: it reads an input's memory by an offset, which a copy of the input"
            " does not have"
        )
    for value in _tensors((node, *node.all_input_nodes)):
        if not states.records(value.device.type):
            return f"works on {value.device.type} tensors, which CUDA graphs do not record"
    return None


def whole_graph(graph: torch.fx.Graph) -> str | None:
    """Returns the first reason why the graph cannot be captured, or None."""
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            reason = supports(node)
            if reason is not None:
                return f"{node.target}: {reason}"
        elif (
            node.op == "placeholder"
            and node.users
            and any(not states.records(v.device.type) for v in _tensors((node,)))
        ):
            return f"input {node.name} is a {node.meta['val'].device.type} tensor"
        if communicates(node.target) and not _is_waited_for(node):
            return f"{node.target}: a collective and the wait for it are not in one graph"
    read = [node for node in graph.nodes if node.op != "placeholder" or node.users]
    devices = {value.device for value in _tensors(read)}
    if len(devices) > 1:
        return f"it works on several devices: {', '.join(sorted(map(str, devices)))}"
    return None


def device_of(graph: torch.fx.Graph) -> torch.device | None:
    """Returns the device of the first tensor that the graph reads or makes; None where there is
    none."""
    for node in graph.nodes:
        if node.op == "placeholder" and not node.users:
            continue
        for value in _tensors((node,)):
            return value.device  # type: ignore[no-any-return]
    return None


@dataclass(frozen=True, slots=True)
class Traits:
    """What capturing needs to know of a graph, so that the graph of a stored runner can be captured
    without its FX form."""

    #: The device that it works on.
    device: torch.device | None
    #: Against capturing.
    reason: str | None
    #: Positions of the tensor inputs.
    tensors: tuple[int, ...]
    #: How many.
    inputs: int
    operators: int
    #: The generators among the arguments of operators.
    generators: tuple[torch.Generator, ...] = ()
    #: Whether it has collectives.
    communicates: bool = False

    def stored(self) -> dict[str, Any] | None:
        """Returns the traits as a JSON-compatible dict; None where that is not possible."""
        if self.device is None or self.reason is not None or self.generators:
            return None
        return {
            "device": str(self.device),
            "tensors": list(self.tensors),
            "inputs": self.inputs,
            "operators": self.operators,
            "communicates": self.communicates,
        }

    @staticmethod
    def restored(result: Mapping[str, Any]) -> Traits:
        """Returns the traits that `stored` described."""
        device = torch.device(result["device"])
        return Traits(
            device,
            None,
            tuple(result["tensors"]),
            result["inputs"],
            result["operators"],
            communicates=result.get("communicates", False),
        )


def traits_of(graph: torch.fx.Graph) -> Traits:
    """Collects the traits of a graph."""
    device = device_of(graph)
    placeholders = list(graph.find_nodes(op="placeholder"))
    return Traits(
        device,
        "it has no tensors" if device is None else whole_graph(graph),
        tuple(
            i
            for i, node in enumerate(placeholders)
            if isinstance(node.meta.get("val"), torch.Tensor)
        ),
        len(placeholders),
        sum(node.op == "call_function" for node in graph.nodes),
        generators(graph),
        any(communicates(node.target) for node in graph.nodes),
    )


def generators(graph: torch.fx.Graph) -> tuple[torch.Generator, ...]:
    """Returns the generators that operators of the graph are given as arguments."""
    args = [
        value
        for node in graph.nodes
        for value in (*node.args, *node.kwargs.values())
        if isinstance(value, torch.Generator)
    ]
    return tuple(dict.fromkeys(args))


def _is_of_an_input(node: torch.fx.Node) -> bool:
    """Returns whether a node's value shares its storage with an input of the graph."""
    owner = {storage_key(value.untyped_storage()) for value in _tensors((node,))}
    inputs = node.graph.find_nodes(op="placeholder")
    return any(storage_key(value.untyped_storage()) in owner for value in _tensors(inputs))


def _is_within(node: torch.fx.Node) -> bool:
    """Returns whether an ``as_strided`` reads only elements of its operand, from its first one on: a
    copy of a dense operand has them at the same places."""
    value: Any = node.args[0].meta["val"]  # type: ignore[union-attr]
    size: Any = node.args[1]
    stride: Any = node.args[2]
    offset = node.args[3] if len(node.args) > 3 else None
    numbers = (value.storage_offset(), offset or 0, *size, *stride, *value.shape, *value.stride())
    if node.target is not aten.as_strided.default or not all(isinstance(n, int) for n in numbers):
        return False
    if value.storage_offset() or offset or not value.numel():
        return False
    extent, reached = (
        1 + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
        for sizes, steps in ((value.shape, value.stride()), (size, stride))
    )
    return bool(reached <= extent == value.numel())


def _is_waited_for(node: torch.fx.Node) -> bool:
    """Returns whether a collective's results are waited for in its graph, or a wait's collective is
    there."""
    if node.target is WAIT:
        (source,) = node.all_input_nodes
        while source.target is operator.getitem:
            (source,) = source.all_input_nodes
        return communicates(source.target)
    if node.target.namespace == "_dtensor":  # type: ignore[union-attr]  # done when it returns
        return True
    results = [user for user in node.users if user.target is operator.getitem] or [node]
    value = node.meta.get("val")
    several = len(value) if isinstance(value, (tuple, list)) else 1
    return len(results) == several and all(
        any(user.target is WAIT for user in result.users) for result in results
    )


def _is_told(node: torch.fx.Node) -> bool:
    """Returns whether a node's arguments hold what it would read on the host: the range of a
    histogram, the size of what `repeat_interleave` makes."""
    if node.target is aten.repeat_interleave.Tensor:
        return isinstance(node.kwargs.get("output_size"), int)
    if node.target is not aten.histc.default:
        return False
    inputs = dict(zip(("input", "bins", "min", "max"), node.args, strict=False)) | node.kwargs
    low, high = inputs.get("min", 0), inputs.get("max", 0)
    return all(isinstance(value, (int, float)) for value in (low, high)) and low != high


def _is_mask(index: Any) -> bool:
    value = index.meta.get("val") if isinstance(index, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _tensors(nodes: Iterable[torch.fx.Node]) -> list[Any]:
    """Returns the tensor values of nodes."""
    result: list[Any] = []
    for node in nodes:
        value = node.meta.get("val")
        result += [item for item in (value if isinstance(value, (tuple, list)) else (value,))]
    return [item for item in result if isinstance(item, torch.Tensor)]
