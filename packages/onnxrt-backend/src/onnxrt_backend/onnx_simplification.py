"""Simplifies the exporter's ONNX so that ONNX Runtime can fold and fuse it.

``CastLike`` becomes ``Cast`` where the dtype is known, and ``SplitToSequence`` becomes ``Split``
where its parts are taken by constant index. Other nodes stay as they are. ONNX Runtime knows
``CastLike`` only as a function, which it inlines after constant folding: scales of attention,
bounds of ranges and masks would be computed in every call, and fusion patterns (scaled matmul)
would not match."""

from __future__ import annotations

from typing import Any

#: Operators whose result has the dtype of the first input.
KEEPS_DTYPE = frozenset({
    "Abs", "Add", "Ceil", "Clip", "Concat", "Div", "Exp", "Expand", "Flatten", "Floor", "Gather",
    "Identity", "Log", "MatMul", "Max", "Min", "Mul", "Neg", "Reciprocal", "Reshape", "Sigmoid",
    "Slice", "Softmax", "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
})  # fmt: skip


def make_static(model: Any) -> None:
    """Simplifies the model in place."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "CastLike":
            _cast(node)
        elif node.op_type == "SplitToSequence":
            _split(node)


def _cast(node: Any) -> None:
    """Replaces CastLike by Cast where the dtype is known."""
    import onnx_ir as ir

    value, like = node.inputs
    dtype = _dtype(like)
    if dtype is not None:
        _replace(node, [ir.node("Cast", [value], attributes={"to": dtype})])


def _dtype(value: Any) -> Any:
    """Returns the dtype of a value, or None where it is unknown: the exporter notes dtypes of
    the graph's own values only."""
    import onnx_ir as ir

    while value.dtype is None:
        constant = ir.convenience.get_const_tensor(value)
        if constant is not None:
            return constant.dtype
        maker = value.producer()
        if (
            maker is None
            or maker.domain
            or maker.op_type not in KEEPS_DTYPE
            or maker.inputs[0] is None
        ):
            return None
        value = maker.inputs[0]
    return value.dtype


def _split(node: Any) -> None:
    """Replaces SplitToSequence by Split where the sizes of all parts are known and every reader
    takes one part by a constant index."""
    import onnx_ir as ir

    uses = [item for item, _ in node.outputs[0].uses()]
    takers = {use: number for use in uses if (number := _taken(use)) is not None}
    sizes = _sizes(node)
    if sizes is None or len(takers) < len(uses) or node.outputs[0].is_graph_output():
        return
    axis, lengths = _axis(node), _constant(sizes)
    operands, parts = [node.inputs[0], lengths.outputs[0]], len(sizes)
    split = ir.node("Split", operands, attributes={"axis": axis}, num_outputs=parts)
    result = [lengths, split]
    squeezed = (
        "keepdims" in node.attributes
        and len(node.inputs) == 1
        and not node.attributes["keepdims"].as_int()
    )
    if squeezed:
        result.append(_constant([axis]))
    node.graph.insert_before(node, result)
    for taker, number in takers.items():
        if squeezed:
            _replace(taker, [ir.node("Squeeze", [split.outputs[number], result[2].outputs[0]])])
        elif taker.outputs[0].is_graph_output():  # whose name a session is asked for
            _replace(taker, [ir.node("Identity", [split.outputs[number]])])
        else:
            ir.convenience.replace_all_uses_with(taker.outputs[0], split.outputs[number])
            taker.graph.remove(taker, safe=True)
    node.graph.remove(node, safe=True)


def _constant(values: list[int]) -> Any:
    """Returns a constant of int64 numbers."""
    import onnx_ir as ir

    tensor = ir.tensor(values, dtype=ir.DataType.INT64)
    return ir.node("Constant", [], attributes={"value": tensor})


def _taken(node: Any) -> int | None:
    """Returns the index of the part that a node takes from a sequence; None if the node does
    something else or its index is not constant."""
    import onnx_ir as ir

    if node.op_type not in ("SequenceAt", "aten_getitem"):
        return None
    number = ir.convenience.get_const_tensor(node.inputs[1])
    return None if number is None else int(number.numpy())


def _axis(node: Any) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else 0


def _sizes(node: Any) -> list[int] | None:
    """Returns the sizes of the parts of a SplitToSequence, or None where they are not known at
    compile time."""
    import onnx_ir as ir

    value = node.inputs[0]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        const_tensor = ir.convenience.get_const_tensor(node.inputs[1])
        if const_tensor is None:
            return None
        if const_tensor.shape.rank() == 1:
            return [int(item) for item in const_tensor.numpy()]
        step = int(const_tensor.numpy())
    else:
        step = 1
    length = None if value.shape is None else value.shape[_axis(node)]
    if not isinstance(length, int) or step < 1:
        return None
    return [min(step, length - start) for start in range(0, length, step)]


def _replace(node: Any, result: list[Any]) -> None:
    import onnx_ir as ir

    ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], result, list(node.outputs), list(result[-1].outputs)
    )
