"""Rejects views of mutated memory whose functional form has other values than eager.

Two cases raise LoweringUnsupported. ``as_strided(..., storage_offset)`` of mutated memory counts
from the beginning of the input's storage, while a functional graph's new value begins at 0. A write
through windows (``unfold``) that leave elements out would put zeros there in functional form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.errors import LoweringUnsupported
from tracer_core.torch_private.names import names, operators

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


def require_none(
    graph: torch.fx.Graph, values: Mapping[torch.fx.Node, Any], written: Collection[torch.Tensor]
) -> None:
    """Raises for a view with an absolute storage offset into one of the inputs `written`."""
    if not written:
        return
    storages = {torch_private.storage_id(value) for value in written}
    for node in graph.nodes:
        place = _OFFSETS.get(node.target)
        if place is None:
            continue
        offset = node.args[place] if len(node.args) > place else node.kwargs.get("storage_offset")
        base = node.args[0] if node.args else node.kwargs.get("self", node.kwargs.get("input"))
        if offset is not None and torch_private.storage_id(values[base]) in storages:
            raise LoweringUnsupported(
                "as_strided with a storage_offset of an input that the graph writes to",
                node.meta.get("user_frame") or "",
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
    for node in graph.nodes:
        if node.target in _WINDOWS and _leaves_out(node, values) and is_written(values[node]):
            raise LoweringUnsupported(
                "windows (unfold) that leave elements out, of memory that is written to",
                node.meta.get("user_frame") or "",
            )


def _leaves_out(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> bool:
    names = ("self", "dimension", "size", "step")
    given = [*node.args, *(node.kwargs[name] for name in names[len(node.args) :])]
    plain: list[Any] = [values[one] if isinstance(one, torch.fx.Node) else one for one in given]
    base, dim, size, step = plain
    length = base.shape[dim] if base.dim() else 1
    known = all(type(one) is int for one in (length, size, step))
    return not known or size < step or (size == step and length % step != 0)
