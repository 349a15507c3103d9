"""For which values ONNX Runtime has an operator otherwise than eager.

In: a node of an ATen graph. Out: the fault that the alarm of a graph with it watches for
(`plugin_api.add_value_check`), or None. What always holds: the session's own results stay as they
are. Why max pooling (NaN, windows of nothing but minus infinity) is not mended in the session: what
finds such windows leaves ONNX Runtime's blocked layout, 4 % of resnet18; a mean of the pooled
tensor does not. The positions of maxima are refused (`positions_are_read`). ONNX counts negative
indices from the end in every operator, PyTorch in few.
"""

from __future__ import annotations

import torch

from onnxrt_backend.rewriting import call_after
from tracer_core.plugin_api import ValueClass, checks_indices, operators

aten = operators("aten")

#: Places that are no numbers are read elsewhere than in eager.
SAMPLES = frozenset(
    {aten.grid_sampler_2d.default, aten.grid_sampler_3d.default, aten.grid_sampler.default}
)

POOLS = frozenset({aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default})

#: Of several equal ones the first is the largest, as in eager; NaN is lost.
EXTREMES = frozenset({
    aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.max.dim,
    aten.min.dim,
    aten.argmax.default, aten.argmin.default,
})  # fmt: skip


def fault(node: torch.fx.Node) -> ValueClass | None:
    """For which values eager's results must be taken."""
    if checks_indices(node):
        return ValueClass.INDEX
    if node.target in POOLS or node.target in SAMPLES:
        return ValueClass.INFINITE
    return ValueClass.NAN if node.target in EXTREMES else None


def positions_are_read(node: torch.fx.Node) -> bool:
    """Whether the graph wants to know where the maxima are."""
    return node.target in POOLS and any(user.args[1] == 1 and user.users for user in node.users)


def total(source: torch.fx.Node) -> torch.fx.Node | None:
    """Looks through an image without leaving the blocked layout."""
    value = source.meta["val"]
    if (
        value.dtype is not torch.float32
        or value.dim() != 4
        or not all(isinstance(size, int) for size in value.shape[2:])
    ):
        return None
    means = call_after(source, aten.avg_pool2d.default, source, list(value.shape[2:]))
    return call_after(means, aten.sum.default, means)
