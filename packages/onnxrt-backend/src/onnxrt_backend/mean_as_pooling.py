"""Rewrites aten.mean over the image dimensions as aten.avg_pool2d, which stays in ONNX Runtime's
blocked layout (a mean leaves it: 1 % of resnet18).

Only for float32 images of static size, small enough for a plain sum to be as exact as eager's."""

from __future__ import annotations

from typing import Any

import torch

from onnxrt_backend.fx_edit import call_after, take_place
from onnxrt_backend.limits import MAX_POOLED_ELEMENTS
from tracer_core.plugin_api import operators

aten = operators("aten")


def means_are_pools(graph: torch.fx.Graph) -> None:
    """Replaces the means of a graph in place."""
    for node in graph.find_nodes(op="call_function", target=aten.mean.dim):
        window = _window(node)
        if window is None:
            continue
        source: Any = node.args[0]
        result = call_after(node, aten.avg_pool2d.default, source, window)
        if result.meta["val"].dim() != node.meta["val"].dim():
            result = call_after(result, aten.squeeze.dim, result, 3)
            result = call_after(result, aten.squeeze.dim, result, 2)
        take_place(result, node)
        graph.erase_node(node)


def _window(node: torch.fx.Node) -> list[int] | None:
    """Returns height and width of the images that a node averages; None if the mean is another
    one."""
    source: Any = node.args[0]
    dims: Any = node.args[1]
    value = source.meta["val"]
    if (
        value.dim() != 4
        or value.dtype is not torch.float32
        or node.kwargs.get("dtype") not in (None, torch.float32)
    ):
        return None
    if not isinstance(dims, (list, tuple)) or sorted(dim % 4 for dim in dims) != [2, 3]:
        return None
    window = list(value.shape[2:])
    if (
        not all(isinstance(size, int) and size > 0 for size in window)
        or window[0] * window[1] > MAX_POOLED_ELEMENTS
    ):
        return None
    return window
