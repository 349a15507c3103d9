"""Clamps with one bound: ONNX Runtime's Clip without the other one makes an infinity the largest
number.

In: an fx graph of ATen operators with values. Out: the same graph, in which such a clamp of
floating point is the larger, or the smaller, of a tensor and a number. What always holds: NaN and
infinities are eager's; names stay.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tracer_core.plugin_api import operators

aten = operators("aten")

#: Operator: by which operator of two tensors a lower bound holds, and an upper one; where they are
#: among its arguments.
LOWER, UPPER = aten.maximum.default, aten.minimum.default
CLAMPS = {
    aten.clamp.default: {1: LOWER, 2: UPPER},
    aten.clamp_min.default: {1: LOWER},
    aten.clamp_max.default: {1: UPPER},
}
NAMES = {"min": 1, "max": 2}


def single_bounds(graph: torch.fx.Graph) -> None:
    """Changes them in place."""
    for node in list(graph.nodes):
        if (found := single_bound(node)) is not None:
            target, bound = found
            with graph.inserting_before(node):
                number = graph.call_function(
                    aten.full.default, ([], bound), {"dtype": node.meta["val"].dtype}
                )
            number.meta["val"] = node.meta["val"].new_empty(())
            node.target, node.args, node.kwargs = target, (node.args[0], number), {}


def single_bound(node: torch.fx.Node) -> tuple[Any, float] | None:
    """(the operator that holds a clamp's only bound, the bound); None if this is no such clamp of
    floating point.
    """
    if node.target not in CLAMPS or not node.meta["val"].dtype.is_floating_point:
        return None
    places = NAMES if node.target is aten.clamp.default else {"min": 1, "max": 1}
    given = dict(enumerate(node.args)) | {
        places[name]: value for name, value in node.kwargs.items()
    }
    bounds = [
        (way, given[place])
        for place, way in CLAMPS[node.target].items()
        if given.get(place) is not None
    ]
    if len(bounds) != 1:
        return None
    ((way, bound),) = bounds
    return (
        (way, float(bound)) if isinstance(bound, (int, float)) and not math.isnan(bound) else None
    )
