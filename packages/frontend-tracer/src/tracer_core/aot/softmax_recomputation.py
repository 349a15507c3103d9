"""Recomputes outputs of softmax and log_softmax from their operand and two numbers a row.

``log_softmax(x)`` is ``(x - amax) - log(sum)``, ``softmax(x)`` is ``exp(x - amax) * (1 / sum)``,
where `sum` is that of ``exp(x - amax)``. The loss of a language model has a log_softmax in float32
of logits that a matmul returns in 16 bits: saving the logits and two numbers a row takes half of
the memory, and the loss then writes nothing of the logits' size.

`with_statistics` adds the operators that compute both numbers to the forward of a joint graph,
where nothing reads them. The partitioner's cut decides: where it saves the statistics in place of
the output, both passes compute the output by `SoftmaxFormula`, whose bits are those of a backend's
own softmax; elsewhere the statistics are dead code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from tracer_core import torch_private
from tracer_core.aot.joint_graph import Joint
from tracer_core.aot.memory_owners import NodeWriter, Owners
from tracer_core.aot.symbolic_sizes import as_expression
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node

#: Operators that have a formula -> whether their result is a logarithm.
_LOGARITHMS = {aten._softmax.default: False, aten._log_softmax.default: True}

#: Devices on which an exponential takes longer than to write and read its result.
SLOW_EXPONENTIALS = {"cpu"}

#: In the meta of a node of `_LOGARITHMS`: its formula.
_FORMULA = "tracer_softmax_formula"


@dataclass(frozen=True, slots=True)
class SoftmaxFormula:
    """The formula of one output.

    x: the operand, in the dtype of the computation. amax: its maxima. total: the sums, or their
    logarithms for log_softmax. result: the node that the formula replaces.
    """

    x: Node
    amax: Node
    total: Node
    result: Node

    @property
    def sources(self) -> list[Node]:
        return [self.x, self.amax, self.total]

    @property
    def statistics(self) -> tuple[Node, ...]:
        """The values that only the formula reads."""
        return self.amax, self.total

    def emit(self, graph: torch.fx.Graph, function: Callable[[Node], Node]) -> Node:
        """Emits the formula at the end of a graph. function: maps a source to its node there."""
        write = NodeWriter(graph, self.result)
        x, amax, total = map(function, self.sources)
        final = self.result.meta["val"]
        like = torch_private.fake_like(final, x.meta["val"].dtype)
        value = write.node(aten.sub.Tensor, (x, amax), {}, like)
        if _LOGARITHMS[self.result.target]:
            value = write.node(aten.sub.Tensor, (value, total), {}, like)
        else:
            # One division a row, as backends that fuse compute it.
            share = write(aten.reciprocal.default, total)
            value = write.node(aten.exp.default, (value,), {}, like)
            value = write.node(aten.mul.Tensor, (value, share), {}, like)
        if final.dtype is not like.dtype:
            value = write(aten._to_copy.default, value, dtype=final.dtype)
        value.meta["val"] = final
        return value


def with_statistics(joint: Joint) -> Joint:
    """Returns the joint graph with the statistics of each softmax in its forward, which changes
    the graph in place. An output that the program returns is in memory anyway: it has none.
    """
    owners = Owners(joint.graph.nodes)
    returned = {owners.of(node) for node in joint.outputs}
    forward: list[Node] = []
    for node in joint.forward:
        if node.target in _LOGARITHMS and node not in returned and _has_statistics(node):
            forward += _add_statistics(joint.graph, node)
        forward.append(node)
    return replace(joint, forward=tuple(forward))


def _has_statistics(node: Node) -> bool:
    """Whether the rows have elements that are floats, the result has the operand's strides, and the
    device is quick to compute an exponential once more.
    """
    x, value = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    row = x.shape[node.args[1]] if x.dim() else 1
    if x.device.type in SLOW_EXPONENTIALS and not _LOGARITHMS[node.target]:
        return False
    return (
        x.is_floating_point()
        and [*map(as_expression, x.stride())] == [*map(as_expression, value.stride())]
        and not (isinstance(row, int) and row == 0)
    )


def _add_statistics(graph: torch.fx.Graph, node: Node) -> list[Node]:
    """Returns the nodes, which stand before the softmax."""
    x, dim = node.args[:2]
    assert isinstance(x, Node)
    added: list[Node] = []
    with graph.inserting_before(node):
        write = NodeWriter(graph, node)
        if x.meta["val"].dtype.itemsize < 4:
            x = write(aten._to_copy.default, x, dtype=torch.float32)
            added.append(x)
        amax = write(aten.amax.default, x, [dim], True)
        shifted = write(aten.sub.Tensor, x, amax)
        powers = write(aten.exp.default, shifted)
        total = write(aten.sum.dim_IntList, powers, [dim], True)
        added += [amax, shifted, powers, total]
        if _LOGARITHMS[node.target]:
            total = write(aten.log.default, total)
            added.append(total)
    node.meta[_FORMULA] = SoftmaxFormula(x, amax, total, node)
    return added


def softmax_formulas(nodes: Iterable[Node]) -> dict[Node, SoftmaxFormula]:
    """Returns the formula of each node for which `with_statistics` has added statistics."""
    return {node: node.meta[_FORMULA] for node in nodes if _FORMULA in node.meta}
