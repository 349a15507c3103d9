"""Attention whose mask forbids a row every key: eager gives zeros, its ONNX form gives NaN.

In: an fx graph of ATen operators with values. Out: the same graph, in which the results of
attention with a mask are zeros in such rows. What always holds: NaN that comes from the inputs
stays (an ``IsNaN`` behind the softmax, as torch.onnx writes it, would lose it); one mask is looked
through once, however many layers it serves. Rows like these are those of a batch that is padded on
the left.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxrt_backend.rewriting import call_after, take_place
from tracer_core.plugin_api import operators

aten = operators("aten")

#: Attention with a mask that is added: where its mask is among the arguments, and how it is called.
MASKS: dict[Any, tuple[int | None, str]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (None, "attn_mask"),
    aten._scaled_dot_product_efficient_attention.default: (3, "attn_bias"),
}


def forbidden_rows_are_zeros(graph: torch.fx.Graph) -> None:
    """Adds what is missing, in place."""
    empty: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.target not in MASKS or (mask := _mask(node)) is None:
            continue
        for result in [one for one in node.users if one.args[1] == 0]:
            if mask not in empty:
                empty[mask] = _rows(mask)
            take_place(
                call_after(result, aten.masked_fill.Scalar, result, empty[mask], 0.0), result
            )


def refusal(node: torch.fx.Node) -> str | None:
    """What attention the ONNX form computes otherwise, or None."""
    if node.target not in MASKS:
        return None
    given: Any = node.args
    query, key = given[0].meta["val"], given[1].meta["val"]
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
    """Which rows of a mask are minus infinity all along."""
    forbids = call_after(mask, aten.eq.Scalar, mask, float("-inf"))
    return call_after(forbids, aten.all.dim, forbids, -1, True)
