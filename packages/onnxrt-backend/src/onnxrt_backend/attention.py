"""Fixes rows of scaled dot-product attention whose mask forbids every key: eager gives zeros,
the ONNX form NaN.

Such rows occur in batches that are padded on the left. The graph fills them with zeros after the
attention, so NaN from the inputs stays (an ``IsNaN`` behind the softmax, as torch.onnx writes
it, would lose that NaN). Each mask is scanned once, however many layers use it."""

from __future__ import annotations

from typing import Any

import torch

from onnxrt_backend.fx_edit import call_after, take_place
from tracer_core.plugin_api import operators

aten = operators("aten")

#: Attention with an additive mask: the mask's position (None: keyword only) and name.
MASKS: dict[Any, tuple[int | None, str]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (None, "attn_mask"),
    aten._scaled_dot_product_efficient_attention.default: (3, "attn_bias"),
}


def forbidden_rows_are_zeros(graph: torch.fx.Graph) -> None:
    """Fills the results of fully masked rows with zeros, in place."""
    empty: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.target not in MASKS or (mask := _mask(node)) is None:
            continue
        for result in [user for user in node.users if user.args[1] == 0]:
            if mask not in empty:
                empty[mask] = _rows(mask)
            take_place(
                call_after(result, aten.masked_fill.Scalar, result, empty[mask], 0.0), result
            )


def unsupported(node: torch.fx.Node) -> str | None:
    """Returns why the ONNX form of attention computes something else, or None."""
    if node.target not in MASKS:
        return None
    args: Any = node.args
    query, key = args[0].meta["val"], args[1].meta["val"]
    if query.dtype is torch.float64:
        return "its ONNX form computes the scale in float32"
    return (
        "its ONNX form wants as many heads of keys as of queries"
        if query.shape[1] != key.shape[1]
        else None
    )


def _mask(node: torch.fx.Node) -> Any:
    position, name = MASKS[node.target]
    if position is not None and len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name)


def _rows(mask: torch.fx.Node) -> torch.fx.Node:
    """Returns a node that marks the rows of a mask which are -inf throughout."""
    forbids = call_after(mask, aten.eq.Scalar, mask, float("-inf"))
    return call_after(forbids, aten.all.dim, forbids, -1, True)
