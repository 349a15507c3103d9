"""Which images of a graph are kept channels-last.

In: an ATen graph. Out: the nodes whose result has that layout inside our program. What always holds: results of
the graph and operands of ATen's operators have eager's strides all the same: they are copied where they differ.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.externs import packed_ops


def channels_last_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Our own convolutions, and what is computed from them image by image."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.target is packed_ops.convolution or any(
            _is_image(source) for source in node.all_input_nodes if source in found
        ):
            if _is_image(node):
                found.add(node)
    return found


def _is_image(node: torch.fx.Node) -> bool:
    """It has images (or a tuple that begins with them) as its value."""
    value: Any = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and value.dim() == 4
