"""Rewrites floating-point clamps with one bound: ONNX Runtime's Clip with a single bound turns
an infinity into the largest finite number.

Such a clamp becomes aten.maximum or aten.minimum of the tensor and a 0-d tensor, which keep NaN
and infinities as in eager."""

from __future__ import annotations

import math
from typing import Any

import torch

from tracer_core.plugin_api import operators

aten = operators("aten")

#: Clamp operator -> the bound's position among the arguments -> the operator that replaces it.
LOWER, UPPER = aten.maximum.default, aten.minimum.default
CLAMPS = {
    aten.clamp.default: {1: LOWER, 2: UPPER},
    aten.clamp_min.default: {1: LOWER},
    aten.clamp_max.default: {1: UPPER},
}
NAMES = {"min": 1, "max": 2}


def single_bounds(graph: torch.fx.Graph) -> None:
    """Rewrites the clamps of a graph in place."""
    for node in list(graph.nodes):
        if (result := single_bound(node)) is not None:
            target, bound = result
            with graph.inserting_before(node):
                number = graph.call_function(
                    aten.full.default, ([], bound), {"dtype": node.meta["val"].dtype}
                )
            number.meta["val"] = node.meta["val"].new_empty(())
            node.target, node.args, node.kwargs = target, (node.args[0], number), {}


def single_bound(node: torch.fx.Node) -> tuple[Any, float] | None:
    """Returns (the operator that replaces a clamp with one bound, the bound), or None if the
    node is not a floating-point clamp with a single number as its bound."""
    if node.target not in CLAMPS or not node.meta["val"].dtype.is_floating_point:
        return None
    places = NAMES if node.target is aten.clamp.default else {"min": 1, "max": 1}
    inputs = dict(enumerate(node.args)) | {
        places[name]: value for name, value in node.kwargs.items()
    }
    bounds = [
        (way, inputs[place])
        for place, way in CLAMPS[node.target].items()
        if inputs.get(place) is not None
    ]
    if len(bounds) != 1:
        return None
    ((way, bound),) = bounds
    return (
        (way, float(bound)) if isinstance(bound, (int, float)) and not math.isnan(bound) else None
    )
