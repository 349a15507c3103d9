"""Which images of a graph are kept channels-last.

In: an ATen graph. Out: the nodes whose result has that layout inside our program. What always holds: results of
the graph and operands of ATen's operators have eager's strides all the same: they are copied where they differ;
on GPUs convolutions among the nodes read and write channels-last images, which is how tensor cores multiply (cuDNN
turns planes round before and after each convolution; on an H100 resnet18 takes two thirds of the time).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.externs import packed_ops
from inductor_backend.torch_private import tf32_allowed

convolution = torch.ops.aten.convolution.default

#: Channels from which a convolution fills tensor cores.
CHANNELS = 16


def channels_last_nodes(graph: torch.fx.Graph, gpu: bool) -> set[torch.fx.Node]:
    """Our own convolutions (gpu: the operator's, where it is quicker so), and what is computed from them image by image."""
    starts: Callable[[torch.fx.Node], bool] = lambda node: node.target is packed_ops.convolution  # noqa: E731
    if gpu:
        quicker = convolutions_on_tensor_cores(graph)
        starts = quicker.__contains__
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if starts(node) or any(_is_image(source) for source in node.all_input_nodes if source in found):
            if _is_image(node):
                found.add(node)
    return found


def convolutions_on_tensor_cores(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The 2-d convolutions of a graph that does most of its multiplications on tensor cores, else none."""
    found: set[torch.fx.Node] = set()
    fit = other = 0
    for node in graph.find_nodes(op="call_function", target=convolution):
        image, weight = (argument.meta["val"] for argument in node.args[:2])
        groups, turned = node.args[8], node.args[6]
        work = math.prod(_hints(node.meta["val"].shape)) * math.prod(_hints(weight.shape[1:]))
        if groups == 1 and min(_hints(weight.shape[:2])) >= CHANNELS and _in_tensor_cores(image.dtype):
            fit += work
        else:
            other += work
        if image.dim() == 4 and not turned and all(_hints(image.shape)):
            found.add(node)
    return found if fit > other else set()


def _in_tensor_cores(dtype: torch.dtype) -> bool:
    return dtype in (torch.bfloat16, torch.float16) or (dtype is torch.float32 and tf32_allowed(convolution=True))


def _hints(sizes: Any) -> list[int]:
    return [int(size.node.hint) if isinstance(size, torch.SymInt) else int(size) for size in sizes]


def _is_image(node: torch.fx.Node) -> bool:
    """It has images (or a tuple that begins with them) as its value."""
    value: Any = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return isinstance(value, torch.Tensor) and value.dim() == 4
