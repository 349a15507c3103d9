"""Max pooling of windows with NaN, or with nothing but minus infinity: ONNX Runtime gives numbers, eager does not.

In: an fx graph of ATen operators with values. Out: the same graph, in which such windows give what eager gives. What always
holds: nothing else changes. How: the mean of a window is NaN where one of its values is, if they are never infinities of
both signs, which is known behind a ReLU; it is pooled in ONNX Runtime's blocked layout like the maximum (2 % of resnet18).
Elsewhere a second pooling looks for what there is. The positions of maxima are refused (`positions_are_read`): nothing tells
which one was NaN.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from onnxrt_backend.rewriting import call_after, take_place

aten = torch.ops.aten

POOLS = frozenset({aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default})

#: Operators whose results are never minus infinity: no two infinities of one window cancel out.
BOUNDED_BELOW = frozenset({
    aten.relu.default, aten.sigmoid.default, aten.abs.default, aten.exp.default, aten.tanh.default, aten.silu.default,
    aten.gelu.default, aten.elu.default, aten.hardtanh.default, aten.hardswish.default,
})  # fmt: skip


def positions_are_read(node: torch.fx.Node) -> bool:
    """Whether the graph wants to know where the maxima are."""
    return node.target in POOLS and any(user.args[1] == 1 and user.users for user in node.users)


def windows_keep_nan(graph: torch.fx.Graph) -> None:
    """Adds what is missing, in place."""
    for node in list(graph.nodes):
        if node.target in POOLS and node.meta["val"][0].dtype.is_floating_point:
            for result in [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]:
                _mend(node, result)


def _mend(node: torch.fx.Node, result: torch.fx.Node) -> None:
    """result: the maxima that `node` finds."""
    source: Any = node.args[0]
    size, stride, padding, dilation, ceil = _settings(node)
    two = node.target is aten.max_pool2d_with_indices.default and source.meta["val"].dtype is torch.float32
    if two and _bounded_below(source) and all(step == 1 for step in dilation):  # means have kernels for these only
        means = call_after(result, aten.avg_pool2d.default, source, size, stride, padding, ceil, False)
        has_nan = call_after(means, aten.isnan.default, means)
        take_place(call_after(has_nan, aten.masked_fill.Scalar, result, has_nan, float("nan")), result)
        return
    # 2: NaN; 1: a number or infinity; 0: minus infinity
    nan = call_after(result, aten.isnan.default, source)
    greater = call_after(nan, aten.gt.Scalar, source, float("-inf"))
    kinds = call_after(greater, aten._to_copy.default, greater, dtype=torch.float32)
    kinds = call_after(kinds, aten.masked_fill.Scalar, kinds, nan, 2.0)
    pooled = call_after(kinds, node.target, kinds, *node.args[1:], **node.kwargs)
    most = call_after(pooled, operator.getitem, pooled, 0)
    nothing = call_after(most, aten.lt.Scalar, most, 0.5)
    has_nan = call_after(nothing, aten.gt.Scalar, most, 1.5)
    made = call_after(has_nan, aten.masked_fill.Scalar, result, nothing, float("-inf"))
    take_place(call_after(made, aten.masked_fill.Scalar, made, has_nan, float("nan")), result)


def _bounded_below(value: Any) -> bool:
    """Whether a value is never minus infinity, as far as its maker tells; one pooling may follow another."""
    while value.op == "call_function":
        if value.target in BOUNDED_BELOW:
            return True
        if value.target not in (operator.getitem, aten.masked_fill.Scalar, *POOLS):
            return False
        if value.target is aten.masked_fill.Scalar and value.args[2] == float("-inf"):
            return False
        if value.target is operator.getitem and value.args[0].target not in POOLS:
            return False
        value = value.args[0]
    return False


def _settings(node: torch.fx.Node) -> tuple[Any, Any, Any, Any, bool]:
    """Size, stride, padding, dilation and ceil mode of a pooling."""
    named = dict(zip(("kernel_size", "stride", "padding", "dilation", "ceil_mode"), node.args[1:], strict=False))
    given: dict[str, Any] = {**named, **node.kwargs}
    ceil = bool(given.get("ceil_mode", False))
    return given["kernel_size"], given.get("stride", []), given.get("padding", 0), _many(given.get("dilation", 1)), ceil


def _many(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
