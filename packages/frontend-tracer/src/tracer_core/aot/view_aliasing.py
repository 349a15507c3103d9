"""Rejects views of mutated memory whose functional form has other values than eager.

Three cases raise LoweringUnsupported. ``as_strided(..., storage_offset)`` of mutated memory counts
from the beginning of the input's storage, while a functional graph's new value begins at 0. A write
through windows (``unfold``) that leave elements out would put zeros there in functional form.
A write through ``expand`` would add to the memory what the write changes: another rounding, and NaN
where either is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot import memory_overlap
from tracer_core.aot.output_aliasing import OutputLayout
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import pytree

aten = operators("aten")

#: Captured call -> position of its offset among the arguments.
_OFFSETS: dict[Any, int] = {
    **dict.fromkeys(("as_strided", *names("as_strided Tensor.as_strided as_strided_copy")), 3),
    **dict.fromkeys(names("as_strided as_strided.default as_strided_copy as_strided_copy.default",
    of="ops.aten"), 3),
    **dict.fromkeys(("as_strided_scatter", *names("as_strided_scatter Tensor.as_strided_scatter")),
    4),
    **dict.fromkeys(names("as_strided_scatter as_strided_scatter.default", of="ops.aten"), 4),
}  # fmt: skip


def _calls(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yields the calls of a captured graph. An input's target is its name, which may be a method's."""
    return (node for node in graph.nodes if node.op.startswith("call_"))


def writers(graph: torch.fx.Graph, storages: Collection[int]) -> list[torch.fx.Node]:
    """Returns the calls that write to one of these storages."""
    return [
        call for call in _calls(graph) if not set(call.meta.get("writes", ())).isdisjoint(storages)
    ]


def views(
    graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any], value: torch.Tensor, casts: bool
) -> list[torch.fx.Node]:
    """Returns the calls that make views of the memory of a value; of them those alone that give
    another dtype than their operand has, if there are any and `casts`."""
    storage, result, casting = torch_private.storage_id(value), [], []
    for node in _calls(graph):
        inputs = [values[item] for item in node.all_input_nodes if _lies_in(values[item], storage)]
        leaves = [leaf for leaf in pytree.tree_leaves(values[node]) if _lies_in(leaf, storage)]
        if inputs and leaves and not node.meta.get("writes"):
            result.append(node)
            if {_kind(item) for item in leaves} != {_kind(item) for item in inputs}:
                casting.append(node)
    return casting if casts and casting else result


def _lies_in(value: Any, storage: int) -> bool:
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_strided and torch_private.storage_id(value) == storage


def _kind(value: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    return value.dtype, value.is_conj(), value.is_neg()


def absolute_offsets(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, Any, Any]]:
    """Yields each node with an offset from the beginning of a storage, its operand and the offset,
    or None, which is the operand's."""
    for node in _calls(graph):
        place = _OFFSETS.get(node.target)
        if place is not None:
            offset = node.args[place] if len(node.args) > place else None
            base = node.args[0] if node.args else node.kwargs.get("self", node.kwargs.get("input"))
            yield node, base, node.kwargs.get("storage_offset", offset)


def require_none(
    graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any], written: Collection[torch.Tensor]
) -> None:
    """Raises for a view with an absolute storage offset into one of the inputs `written`, and for
    such an input with several elements at one place in memory."""
    if not written:
        return
    shared = {
        torch_private.storage_id(item) for item in written if memory_overlap.overlaps_itself(item)
    }
    if shared:
        reason = "the graph writes to an input whose elements share memory"
        raise LoweringUnsupported(reason, nodes=writers(graph, shared))
    storages = {torch_private.storage_id(value) for value in written}
    for node, base, offset in absolute_offsets(graph):
        if torch_private.storage_id(values[base]) not in storages:
            continue
        if offset is not None or not OutputLayout.of(values[base]).covers(
            OutputLayout.of(values[node])
        ):
            raise LoweringUnsupported(
                "as_strided, with a storage_offset or beyond its operand's elements, of an input"
                " that the graph writes to",
                node.meta.get("user_frame") or "",
                writers(graph, {torch_private.storage_id(values[base])}),
            )


#: Captured calls that give windows: (tensor, dimension, size, step).
_WINDOWS = frozenset({"unfold", *names("Tensor.unfold ops.aten.unfold ops.aten.unfold.default")})


def require_whole_windows(
    graph: torch.fx.Graph,
    values: Mapping[torch.fx.Node, Any],
    is_written: Callable[[torch.Tensor], bool],
) -> None:
    """Raises for windows that leave elements out of memory that is written to, through them or not.

    Windows that overlap cannot be written through.
    """
    for node in _calls(graph):
        if node.target in _WINDOWS and _leaves_out(node, values) and is_written(values[node]):
            raise LoweringUnsupported(
                "windows (unfold) that leave elements out, of memory that is written to",
                node.meta.get("user_frame") or "",
                writers(graph, {torch_private.storage_id(values[node])}),
            )


def _leaves_out(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> bool:
    names = ("self", "dimension", "size", "step")
    inputs = [*node.args, *(node.kwargs[name] for name in names[len(node.args) :])]
    simple: list[Any] = [
        values[item] if isinstance(item, torch.fx.Node) else item for item in inputs
    ]
    base, dim, size, step = simple
    length = base.shape[dim] if base.dim() else 1
    known = all(type(value) is int for value in (length, size, step))
    return not known or size < step or (size == step and length % step != 0)


#: Captured calls that give expanded views.
_EXPANSIONS = frozenset(
    {
        *("expand", "expand_as", "broadcast_to"),
        *names("Tensor.expand Tensor.expand_as Tensor.broadcast_to broadcast_to broadcast_tensors"),
        *names("functional.meshgrid functional.broadcast_tensors meshgrid"),
        *names("expand expand.default broadcast_to broadcast_to.default", of="ops.aten"),
    }
)


def require_no_write_through_expansion(
    graph: torch.fx.Graph,
    values: Mapping[torch.fx.Node, Any],
    is_written: Callable[[torch.Tensor], bool],
) -> None:
    """Raises for a write to a view of an expanded tensor."""
    for node in _calls(graph):
        if not node.meta.get("writes"):
            continue
        for source in node.all_input_nodes:
            value = values.get(source)
            if isinstance(value, torch.Tensor) and _expanded(source, values) and is_written(value):
                raise LoweringUnsupported(
                    "a write through expand", node.meta.get("user_frame") or "", (node,)
                )


def _expanded(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> bool:
    """Whether a value is a view made by way of an expansion."""
    storage = torch_private.storage_id(values[node])
    while node.target not in _EXPANSIONS:
        base = node.args[0] if node.args else None
        if not isinstance(base, torch.fx.Node):
            return False
        value = values.get(base)
        if isinstance(value, torch.Tensor) and torch_private.storage_id(value) != storage:
            return False
        node = base
    return True
