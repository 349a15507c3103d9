"""Value checks of ONNX Runtime: the operators whose results differ from eager's for some values.

`fault` names for each operator the values that `plugin_api.add_value_check` watches for. Max
pooling (NaN, windows of nothing but -inf) is not fixed in the graph itself: finding such windows
leaves ONNX Runtime's blocked layout, which costs 4 % of resnet18; the mean that `total` takes
does not. Reading the indices of the maxima is unsupported (`positions_are_read`). ONNX counts
negative indices from the end in every operator, PyTorch in few."""

from __future__ import annotations

import torch

from onnxrt_backend.fx_edit import call_after
from tracer_core.plugin_api import ValueClass, checks_indices, operators

aten = operators("aten")

#: For NaN coordinates these sample other places than eager does.
SAMPLES = frozenset(
    {aten.grid_sampler_2d.default, aten.grid_sampler_3d.default, aten.grid_sampler.default}
)

POOLS = frozenset({aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default})

#: Among equal elements these return the first, as eager does; they lose NaN.
EXTREMES = frozenset({
    aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.max.dim,
    aten.min.dim, aten.argmax.default, aten.argmin.default,
})  # fmt: skip


def fault(node: torch.fx.Node) -> ValueClass | None:
    """Returns the values for which eager's results must be taken, or None."""
    if checks_indices(node):
        return ValueClass.INDEX
    if node.target in POOLS or node.target in SAMPLES:
        return ValueClass.INFINITE
    return ValueClass.NAN if node.target in EXTREMES else None


def positions_are_read(node: torch.fx.Node) -> bool:
    """Returns whether a node is a max pooling whose indices of the maxima are read."""
    return node.target in POOLS and any(user.args[1] == 1 and user.users for user in node.users)


def total(source: torch.fx.Node) -> torch.fx.Node | None:
    """Returns a node that scans an image without leaving the blocked layout: the sum of the
    channels' means. None for other tensors."""
    value = source.meta["val"]
    if (
        value.dtype is not torch.float32
        or value.dim() != 4
        or not all(isinstance(size, int) for size in value.shape[2:])
    ):
        return None
    means = call_after(source, aten.avg_pool2d.default, source, list(value.shape[2:]))
    return call_after(means, aten.sum.default, means)
