"""Chooses which images of a graph are kept channels-last.

Outputs of the graph and operands of ATen's operators still get eager's strides: they are copied
where the strides differ. On GPUs the chosen convolutions read and write channels-last images, as
tensor cores need (cuDNN would transpose before and after each convolution; resnet18 on an H100
takes two thirds of the time). A convolution that would be rounded to TF32 only because of its
layout keeps eager's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.ir.target import in_tensor_cores
from inductor_backend.kernels import packed_ops
from inductor_backend.runtime.cuda import tf32
from tracer_core.plugin_api import Trait, operators, overloads_with

aten = operators("aten")

#: Operator -> positions of its image, weight, "transposed" and "groups".
CONVOLUTIONS = {
    aten.convolution.default: (0, 1, 6, 8),
    aten.convolution_backward.default: (1, 2, 7, 9),
}

#: ATen's operators that are faster on channels-last images and return such ones.
FOLLOWERS = frozenset({aten.max_pool2d_with_indices_backward.default})

#: Operators that read and write images of any strides.
COMBINED = frozenset(
    {
        aten.cat.default,
        aten.upsample_bilinear2d.default,
        aten.upsample_bicubic2d.default,
        aten.upsample_nearest2d.default,
    }
)

#: Operators whose results are views.
VIEWS = overloads_with(Trait.VIEW)

#: Channels from which a convolution fills tensor cores.
CHANNELS = 16


def channels_last_nodes(
    graph: torch.fx.Graph, gpu: bool, wanted: frozenset[str] | None = None
) -> set[torch.fx.Node]:
    """Returns our own convolutions (gpu: ATen's, where channels-last is faster, and channels-last
    inputs), and the images computed from them. wanted: on GPUs, names of the channels-last
    convolutions, where known."""
    starts: Callable[[torch.fx.Node], bool] = lambda node: node.target is packed_ops.convolution
    stays_contiguous: Callable[[torch.fx.Node], bool] = tf32.loses_precision
    if gpu:
        quicker = convolutions_on_tensor_cores(graph)
        if wanted is not None:
            quicker = {node for node in graph.nodes if node.name in wanted}
            stays_contiguous = lambda node: node.name not in wanted
        if not quicker:
            return set()
        starts = lambda node: (
            node in quicker or (node.op == "placeholder" and _lies_last(node.meta["val"]))
        )
    nodes: set[torch.fx.Node] = set()
    for node in graph.nodes:
        begins, sources = starts(node), [s for s in node.all_input_nodes if s in nodes]
        if begins or any(map(_is_image, sources)):
            if _is_image(node) and not (node.target in CONVOLUTIONS and stays_contiguous(node)):
                nodes.add(node)
        if not gpu and (begins or any(_follows(node, source) for source in sources)):
            nodes.add(node)
    return nodes if gpu else nodes | _only_read_last(graph, nodes)


def _only_read_last(graph: torch.fx.Graph, nodes: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the images that eager mode makes contiguous of channels-last ones (of a single image it
    does not know better), though only channels-last images are computed from them."""
    combined: set[torch.fx.Node] = set()
    for node in graph.nodes:
        sources = node.all_input_nodes if node.target in COMBINED and _is_image(node) else ()
        if any(source in combined or _lies_last(source.meta.get("val")) for source in sources):
            combined.add(node)
    result: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in combined and all(user in nodes or user in result for user in node.users):
            result.add(node)
    return result


def _follows(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    """Checks for a sequence (N, C, L) computed from a channels-last one: of equal sizes, and no view,
    which has its operand's memory. Other values of three dimensions may be anything."""
    value, operand = _first(node), _first(source)
    if value is None or operand is None or value.dim() != 3 or node.target in VIEWS:
        return False
    return tuple(map(str, value.shape)) == tuple(map(str, operand.shape))


def convolutions_on_tensor_cores(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Returns the 2-d convolutions (and their gradients) of a graph whose convolutions multiply
    mostly on tensor cores, else none."""
    nodes: set[torch.fx.Node] = set()
    fit = other = 0
    for node in graph.nodes:
        if node.target not in CONVOLUTIONS:
            continue
        at_image, at_weight, at_transposed, at_groups = CONVOLUTIONS[node.target]
        image, weight = node.args[at_image].meta["val"], node.args[at_weight].meta["val"]
        result = node.meta["val"] if at_image == 0 else node.args[0].meta["val"]
        points = image if node.args[at_transposed] else result
        work = math.prod(map(hint, points.shape)) * math.prod(map(hint, weight.shape[1:]))
        wide = node.args[at_groups] == 1 and min(map(hint, weight.shape[:2])) >= CHANNELS
        if wide and in_tensor_cores(image.dtype, convolution=True):
            fit += work
        else:
            other += work
        if image.dim() == 4 and all(map(hint, image.shape)):
            nodes.add(node)
    return nodes if fit > other else set()


def _lies_last(value: Any) -> bool:
    """Checks for a channels-last image that is not contiguous, too."""
    if (
        not isinstance(value, torch.Tensor)
        or value.dim() != 4
        or not all(isinstance(n, int) for n in value.shape)
    ):
        return False
    return value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()


def _is_image(node: torch.fx.Node) -> bool:
    """Checks for a 4-d value (or a tuple that begins with one; a first convolution's backward has
    no gradient of the image)."""
    value = _first(node)
    return value is not None and value.dim() == 4


def _first(node: torch.fx.Node) -> torch.Tensor | None:
    value: Any = node.meta.get("val")
    if isinstance(value, (tuple, list)) and value:
        value = (
            value[1]
            if value[0] is None and node.target is aten.convolution_backward.default
            else value[0]
        )
    return value if isinstance(value, torch.Tensor) else None
