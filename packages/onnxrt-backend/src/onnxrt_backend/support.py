"""Which operators ONNX Runtime can run here: asked of ONNX Runtime itself.

In: a node of an ATen graph. Out: None, or the reason against it. An operator must be in torch.onnx's table,
must not draw random numbers (ONNX Runtime has its own stream, so results would not be eager's), and a model
of this one node must load and compute what PyTorch computes (`onnxrt_backend.probe`). The answer is kept for
nodes that look alike.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from onnxrt_backend import torch_private
from onnxrt_backend.probe import ask

#: dtypes that the translation does not keep exactly.
REFUSED_DTYPES = {
    torch.bfloat16: "ONNX Runtime's CPU provider computes few operators in bfloat16",
    torch.complex64: "ONNX has no complex numbers",
    torch.complex128: "ONNX has no complex numbers",
}

_answers: dict[Any, str | None] = {}


def supports(node: torch.fx.Node) -> str | None:
    """None if ONNX Runtime can run `node`, else why not."""
    target: Any = node.target
    if torch.Tag.nondeterministic_seeded in target.tags and argument(node, "dropout_p") != 0.0:
        return "draws from its own stream of random numbers"
    tensors = [value for value in _values(node) if isinstance(value, torch.Tensor)]
    for tensor in tensors:
        if tensor.dtype in REFUSED_DTYPES:
            return REFUSED_DTYPES[tensor.dtype]
        if any(isinstance(size, int) and size == 0 for size in tensor.shape):
            return "ONNX Runtime's operators are not made for tensors without elements"
    if not torch_private.has_translation(target):
        return "torch.onnx has no translation of it"
    key = signature(node)
    if key not in _answers:
        _answers[key] = _ask(node)
    return _answers[key]


def argument(node: torch.fx.Node, name: str) -> Any:
    """What an operator is given for an argument: its default where it is left out, None if it has none."""
    target: Any = node.target
    for position, declared in enumerate(target._schema.arguments):
        if declared.name == name:
            given = node.args[position] if position < len(node.args) else declared.default_value
            return node.kwargs.get(name, given)
    return None


def reset() -> None:
    """Forgets every answer."""
    _answers.clear()


def _values(node: torch.fx.Node) -> list[Any]:
    """The values of a node's inputs, and those of its own that are read."""
    own = [node.meta["val"]] if _is_single(node) else [node.meta["val"][index] for index in _items_read(node)]
    return [source.meta["val"] for source in node.all_input_nodes] + own


def _is_single(node: torch.fx.Node) -> bool:
    return not isinstance(node.meta["val"], (tuple, list))


def _items_read(node: torch.fx.Node) -> list[int]:
    """Which results of an operator with several are read."""
    return sorted({user.args[1] for user in node.users if user.target is operator.getitem})  # type: ignore[misc]


def signature(node: torch.fx.Node) -> Any:
    """Equal for nodes that ONNX Runtime treats alike: operator, dtypes, ranks, other arguments."""

    def part(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
            return (
                (value.dtype, value.dim(), 0 in value.shape)
                if isinstance(value, torch.Tensor)
                else type(value)
            )
        if isinstance(value, (tuple, list)):
            return tuple(part(item) for item in value)
        return (type(value), value)

    kwargs = tuple((key, part(value)) for key, value in sorted(node.kwargs.items()))
    return node.target, tuple(part(arg) for arg in node.args), kwargs, tuple(_items_read(node))


def _ask(node: torch.fx.Node) -> str | None:
    """Builds a graph of this one node and lets ONNX Runtime try it."""
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    for source in node.all_input_nodes:
        made[source] = graph.placeholder(source.name)
        made[source].meta["val"] = source.meta["val"]
    call = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(_outputs(graph, call, _items_read(node))))
    return ask(graph)


def _outputs(graph: torch.fx.Graph, call: torch.fx.Node, items: list[int]) -> list[torch.fx.Node]:
    """The nodes of the results that are read: the call itself, or items of it."""
    if _is_single(call):
        return [call]
    nodes = []
    for index in items:
        node = graph.call_function(operator.getitem, (call, index))
        node.meta["val"] = call.meta["val"][index]
        nodes.append(node)
    return nodes
