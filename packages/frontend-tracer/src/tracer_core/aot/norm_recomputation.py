"""Recomputes outputs of normalizations from their statistics, as pointwise formulas.

The input of a normalization is saved anyway, for its gradient, so its output (and the activations
computed from it) need not be. That is half of the saved activations of a convolution net, and
nearly all of a densenet's.

A `Formula` exists for each output of a normalization whose statistics the joint graph also returns.
It is the formula of ATen's CPU kernels (scale and shift first for batch and group norm, the
difference from the mean first for layer norm), in the statistics' dtype; its result has the sizes,
strides and dtype of the normalization's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.memory_owners import NodeWriter
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node


@dataclass(frozen=True, slots=True)
class Formula:
    """The formula of one output.

    x, mean, inverse (of the standard deviation): nodes. weight, bias: nodes or None. batch: one
    mean per channel, else one per outer dimension. result: the node that the formula replaces.
    """

    x: Node
    mean: Node
    inverse: Node
    weight: Node | None
    bias: Node | None
    batch: bool
    result: Node

    @property
    def sources(self) -> list[Node]:
        result = (self.x, self.mean, self.inverse, self.weight, self.bias)
        return [node for node in result if node is not None]

    def emit(self, graph: torch.fx.Graph, function: Callable[[Node], Node]) -> Node:
        """Emits the formula at the end of a graph. function: maps a source to its node there."""
        write = _Writer(graph, self.result)
        x, mean, inverse = function(self.x), function(self.mean), function(self.inverse)
        weight, bias = (
            None if item is None else function(item) for item in (self.weight, self.bias)
        )
        if self.batch:
            scale = inverse if weight is None else write(aten.mul.Tensor, inverse, weight)
            shift = write(aten.mul.Tensor, mean, scale)
            if bias is None:
                shift = write(aten.neg.default, shift)
            else:
                shift = write(aten.sub.Tensor, bias, shift)
            value = write.elementwise(aten.mul.Tensor, x, write.per_channel(scale))
            value = write.elementwise(aten.add.Tensor, value, write.per_channel(shift))
        else:
            value = write.elementwise(
                aten.mul.Tensor, write.elementwise(aten.sub.Tensor, x, mean), inverse
            )
            value = value if weight is None else write.elementwise(aten.mul.Tensor, value, weight)
            value = value if bias is None else write.elementwise(aten.add.Tensor, value, bias)
        dtype = self.result.meta["val"].dtype
        if value.meta["val"].dtype is not dtype:
            value = write(aten._to_copy.default, value, dtype=dtype)
        value.meta["val"] = self.result.meta["val"]
        return value


class _Writer(NodeWriter):
    """Appends operators that compute a formula. origin: the node that it replaces."""

    def elementwise(self, target: Any, item: Node, other: Node) -> Node:
        """Adds an elementwise operator with the result's sizes."""
        dtypes = [node.meta["val"].dtype for node in (item, other)]
        like = torch_private.fake_like(self.origin.meta["val"], torch.promote_types(*dtypes))
        return self.node(target, (item, other), {}, like)

    def per_channel(self, value: Node) -> Node:
        """Views a [C] tensor so that it broadcasts along the second dimension of the result."""
        for _ in range(self.origin.meta["val"].dim() - 2):
            value = self(aten.unsqueeze.default, value, -1)
        return value


def _batch(args: tuple[Any, ...], training: int) -> tuple[Any, Any] | None:
    """Returns (weight, bias) of a batch norm over its batch."""
    return (args[1], args[2]) if args[training] is True else None


#: operator -> (its arguments -> (weight, bias), or None where the statistics are not the batch's;
#: whether it is a batch norm)
_NORMS: dict[Any, tuple[Callable[[tuple[Any, ...]], tuple[Any, Any] | None], bool]] = {
    aten._native_batch_norm_legit_functional.default: (lambda args: _batch(args, 5), True),
    aten._native_batch_norm_legit.no_stats: (lambda args: _batch(args, 3), True),
    aten.native_layer_norm.default: (lambda args: (args[2], args[3]), False),
}


def formulas(nodes: Iterable[Node]) -> dict[Node, Formula]:
    """Returns the formula of each output of a normalization that has one."""
    result: dict[Node, Formula] = {}
    for node in nodes:
        formula = _formula(node) if node.target in _NORMS else None
        if formula is not None:
            result[formula.result] = formula
    return result


def _formula(node: Node) -> Formula | None:
    parameters, batch = _NORMS[node.target]
    inputs = parameters(node.args)
    items = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    x = node.args[0]
    if inputs is None or not {0, 1, 2} <= items.keys() or not isinstance(x, Node):
        return None
    value, result, mean = (value.meta["val"] for value in (x, items[0], items[1]))
    if batch and (mean.dim() != 1 or value.dim() < 2):
        return None
    if value.dtype is not result.dtype or value.stride() != result.stride():
        return None
    # ATen computed with what it rounded afterwards: 16-bit inputs on the CPU
    if mean.dtype.itemsize < 4:
        return None
    return Formula(x, items[1], items[2], *inputs, batch, items[0])
