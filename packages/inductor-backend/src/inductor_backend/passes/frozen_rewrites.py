"""Rewrites for frozen graphs: folds batch norm, packs the weights of matmuls and convolutions,
fuses their epilogues.

Float32 only. A value with other readers is still computed, and rewrites change results by rounding
alone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels import packed_ops
from inductor_backend.kernels.packed_weights import Geometry, for_result, is_fast
from inductor_backend.kernels.selection import (
    BLOCKED_ROWS,
    FEW_ROWS_FORMS,
    MATMULS,
    Operand,
    best,
    pays_for_tiles,
    reads_plain_weights,
)
from inductor_backend.passes.constant_subgraph import is_worth_it
from inductor_backend.passes.fx_edit import Editor, aten

Node = torch.fx.Node

#: Matmuls of fewer multiplications stay ATen's: the overhead of the call decides there.
SMALL_MATMUL = 200_000


def _tensor(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _float32(*nodes: Any) -> bool:
    return all(
        node is None or getattr(_tensor(node), "dtype", None) == torch.float32 for node in nodes
    )


# batch norm ---------------------------------------------------------------------------------------


def scale_after_convolutions(editor: Editor, convolutions: Collection[Node]) -> None:
    """Turns inference batch norm after one of these convolutions into the convolution's scale and
    bias (in its meta, for `pack_convolutions`), where nothing else reads the convolution. For
    parameters that are no constants."""
    for node in list(editor.graph.nodes):
        if node.target is not aten._native_batch_norm_legit_no_training.default:
            continue
        x, weight, bias, mean, var, *_ = node.args
        items = [user for user in node.users if user.args[1] == 0]
        if x not in convolutions or len(x.users) != 1 or len(items) != 1 or len(node.users) != 1:
            continue
        if not _float32(x, weight, bias, mean, var) or any(
            arg is not None and _tensor(arg) is None for arg in node.args[1:5]
        ):
            continue
        scale, shift = _scale_and_shift(editor, node)
        offset = x.args[2]
        if offset is not None:
            shift = editor.call(
                node, aten.add.Tensor, shift, editor.call(node, aten.mul.Tensor, offset, scale)
            )
        result = editor.call(node, aten.convolution.default, *x.args)
        result.meta |= {"scale": scale, "shift": shift}
        items[0].replace_all_uses_with(result)
        for dead in (items[0], node, x):
            editor.graph.erase_node(dead)


def fold_batch_norm(editor: Editor) -> None:
    """Folds inference batch norm into one multiply and one add per channel, or into the weight and
    bias of a convolution before it that nothing else reads."""
    for node in list(editor.graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            _fold_one(editor, node)


def _fold_one(editor: Editor, node: Node) -> None:
    x, weight, bias, mean, var, *_ = node.args
    items = [user for user in node.users if user.args[1] == 0]
    if not editor.is_constant(weight, bias, mean, var) or not _float32(x, weight, bias, mean, var):
        return
    if len(items) != len(node.users) or len(items) != 1 or editor.is_constant(x):
        return
    new = editor.before(node)
    scale, shift = _scale_and_shift(editor, node)
    if _convolution_before(editor, x):
        assert isinstance(x, Node)
        before, filters, offset, *rest = x.args
        rank = _rank(filters)
        filters = new(
            aten.mul.Tensor, filters, new(aten.view.default, scale, [-1, *[1] * (rank - 1)])
        )
        shift = (
            shift
            if offset is None
            else new(aten.add.Tensor, shift, new(aten.mul.Tensor, offset, scale))
        )
        result = new(aten.convolution.default, before, filters, shift, *rest)
    else:
        shape = [1, -1, *[1] * (_rank(x) - 2)]
        scaled = new(aten.mul.Tensor, x, new(aten.view.default, scale, shape))
        result = new(aten.add.Tensor, scaled, new(aten.view.default, shift, shape))
    items[0].replace_all_uses_with(result)
    for dead in (items[0], node):
        editor.graph.erase_node(dead)
    if isinstance(x, Node) and not x.users:
        editor.graph.erase_node(x)


def _scale_and_shift(editor: Editor, node: Node) -> tuple[Node, Node]:
    """Returns a batch norm's factor and offset per channel."""
    _, weight, bias, mean, var, _, eps = node.args
    new = editor.before(node)
    scale = new(aten.rsqrt.default, new(aten.add.Tensor, var, eps))
    scale = scale if weight is None else new(aten.mul.Tensor, scale, weight)
    shift = new(aten.neg.default, new(aten.mul.Tensor, mean, scale))
    return scale, shift if bias is None else new(aten.add.Tensor, shift, bias)


def _rank(node: Any) -> int:
    value = _tensor(node)
    assert value is not None
    return value.dim()


def _convolution_before(editor: Editor, x: Any) -> bool:
    if not isinstance(x, Node) or x.target is not aten.convolution.default or len(x.users) != 1:
        return False
    transposed = x.args[6]
    return (
        not transposed
        and editor.is_constant(x.args[1], x.args[2])
        and _float32(x.args[1], x.args[2])
    )


# packed weights -----------------------------------------------------------------------------------


def pack_weights(editor: Editor) -> None:
    """Replaces convolutions and matmuls with constant weights by ours with packed weights."""
    for node in list(editor.graph.nodes):
        if node in editor.constant:
            continue
        rule = _PACKED.get(node.target)
        replacement = rule(editor, node) if rule is not None else None
        if replacement is not None:
            put(editor, node, replacement)


def put(editor: Editor, old: Node, new: Node) -> None:
    """Puts a node in another's place."""
    new.meta["val"] = old.meta["val"]
    old.replace_all_uses_with(new)
    editor.graph.erase_node(old)


def is_widened(node: Node) -> bool:
    """Returns whether a matmul of few rows of 16-bit floats has a kernel that widens them as it reads
    them."""
    return _form(node) in FEW_ROWS_FORMS.values()


def _form(node: Node) -> str:
    """Returns the form of the kernel that computes a matmul as it is."""
    sources = node.all_input_nodes
    if node.target not in MATMULS or node.kwargs or node.args != tuple(sources):
        return ""  # scaled, or one tensor twice
    operands = [Operand.of(source.meta["val"]) for source in sources]
    return best(node.target, operands, hint).form


def _new(editor: Editor, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Inserts a packed operator before `like`, with the fake value of `like`."""
    with editor.graph.inserting_before(like):
        node = editor.graph.call_function(target, args, kwargs)
    node.meta = dict(like.meta)
    return node


def _convolution(editor: Editor, node: Node) -> Node | None:
    return packed_weight_convolution(editor, node) if editor.is_constant(*node.args[1:3]) else None


def geometry_of(node: Node, always: bool = False) -> Geometry | None:
    """Returns the geometry of a convolution that our kernels support and, unless `always`, compute
    faster than ATen's, in the fastest form for the captured sizes."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    value, filters = _tensor(x), _tensor(weight)
    if (
        value is None
        or filters is None
        or value.dim() not in (3, 4)
        or transposed
        or not _float32(x, weight, bias)
    ):
        return None
    numbers = [groups, *filters.shape, *stride, *padding, *dilation]  # type: ignore[misc]
    if not all(isinstance(number, int) for number in numbers) or 0 in filters.shape:
        return None
    count, inside, *kernel_size = filters.shape
    channels: Any = inside * groups  # type: ignore[operator]
    size: Any = (1, *kernel_size)[-2:]
    pairs: Any = [(items[0], items[-1]) for items in (stride, padding, dilation)]  # type: ignore[index]
    if value.dim() == 3:  # a sequence is an image of one row
        pairs = [(row, pair[1]) for row, pair in zip((1, 0, 1), pairs, strict=True)]
    g = Geometry(channels, count, size, pairs[0], pairs[1], pairs[2], groups)  # type: ignore[arg-type]
    if not (always or is_fast(g)):
        return None
    batch, _, *lines = map(hint, node.meta["val"].shape)
    return for_result(g, batch, *(1, *lines)[-2:])


def packed_weight_convolution(editor: Editor, node: Node, always: bool = False) -> Node | None:
    """Returns the call of our kernel for a convolution, before it; None where it has none (see
    `geometry_of`)."""
    g = geometry_of(node, always)
    if g is None:
        return None
    x, weight, bias, *_ = node.args
    numbers = packed_ops.numbers_of(g)
    ready = editor.call(node, packed_ops.pack, weight, numbers)
    scale = node.meta.get("scale")
    if scale is None:
        return _new(editor, node, packed_ops.convolution, x, ready, bias, numbers)
    return _new(
        editor, node, packed_ops.convolution, x, ready, node.meta["shift"], numbers, scale=scale
    )


def pack_convolutions(editor: Editor, convolutions: Collection[Node]) -> None:
    """Packs the weights of these convolutions, and of those that `scale_after_convolutions` made,
    in each call."""
    for node in list(editor.graph.nodes):
        if node in convolutions or "scale" in node.meta:
            replacement = packed_weight_convolution(editor, node)
            if replacement is not None:
                put(editor, node, replacement)


def _mm(editor: Editor, node: Node) -> Node | None:
    return _matmul(editor, node, None, *node.args)


def _addmm(editor: Editor, node: Node) -> Node | None:
    bias, a, b = node.args
    value, matrix = _tensor(bias), _tensor(b)
    if (
        node.kwargs
        or value is None
        or matrix is None
        or value.dim() != 1
        or value.shape[0] != matrix.shape[1]
    ):
        return None
    return _matmul(editor, node, bias, a, b)


def _matmul(editor: Editor, node: Node, bias: Any, a: Any, b: Any) -> Node | None:
    x, matrix = _tensor(a), _tensor(b)
    if x is None or matrix is None or not editor.is_constant(b, bias) or editor.is_constant(a):
        return None
    if is_widened(node):
        return _unpacked(editor, node, bias, a, b)
    k, n = (int(size) for size in matrix.shape)
    if not _float32(a, b, bias) or hint(x.shape[0]) * k * n < SMALL_MATMUL or k < 16 or n < 8:
        return None
    if hint(x.shape[0]) < BLOCKED_ROWS:
        return _unpacked(editor, node, bias, a, b)
    if _form(node) == "blocked":
        if pays_for_tiles(hint(x.shape[0]), k, n):
            ready = editor.call(node, packed_ops.pack_tiles, b)
            if is_worth_it(editor, ready):
                return _new(editor, node, packed_ops.linear, a, ready, bias, n, matrix=b)
            editor.graph.erase_node(ready)
        if reads_plain_weights(hint(x.shape[0]), k, n):
            return None
    numbers = packed_ops.numbers_of(packed_ops.matrix_geometry(k, n))
    rows = editor.call(node, aten.t.default, b)
    ready = editor.call(node, packed_ops.pack, rows, numbers)
    return _new(editor, node, packed_ops.linear, a, ready, bias, n)


def _unpacked(editor: Editor, node: Node, bias: Any, a: Any, b: Any) -> Node | None:
    """Returns a matmul of few rows that reads its weights as [N,K], which lie in the order that they
    are read in; None for weights that are laid out so already."""
    matrix = _tensor(b)
    assert matrix is not None
    if matrix.stride(0) == 1:
        return None
    rows = editor.call(node, aten.t.default, b)
    dense = editor.call(node, aten.clone.default, rows, memory_format=torch.contiguous_format)
    weights = editor.call(node, aten.t.default, dense)
    if bias is None:
        return _new(editor, node, aten.mm.default, a, weights)
    return _new(editor, node, aten.addmm.default, bias, a, weights)


_PACKED = {aten.convolution.default: _convolution, aten.mm.default: _mm, aten.addmm.default: _addmm}


# epilogues ----------------------------------------------------------------------------------------


def _activation(node: Node) -> str | None:
    """Returns the name of the activation that this node computes, or None."""
    if node.target is aten.gelu.default:
        return "gelu_tanh" if node.kwargs.get("approximate", "none") == "tanh" else "gelu_erf"
    if node.target is aten.hardtanh.default:
        return "relu6" if tuple(node.args[1:]) == (0.0, 6.0) else None
    if node.kwargs or len(node.args) != 1:
        return None
    return _ACTIVATIONS.get(node.target)


_ACTIVATIONS: dict[Any, str] = {
    aten.relu.default: "relu", aten.silu.default: "silu", aten.tanh.default: "tanh",
    aten.sigmoid.default: "sigmoid", aten.hardswish.default: "hardswish",
    aten.relu6.default: "relu6",
}  # fmt: skip


def fuse_epilogues(editor: Editor) -> None:
    """Fuses the activation, addition and second activation after packed operators into them, where
    nothing else reads the intermediate results."""
    for node in list(editor.graph.nodes):
        if node.target in (packed_ops.convolution, packed_ops.linear):
            current: Node | None = node
            while current is not None:
                current = _fuse_next(editor, current)


def _fuse_next(editor: Editor, node: Node) -> Node | None:
    """Fuses the node's only reader and returns the fused node, or None."""
    if len(node.users) != 1:
        return None
    (user,) = node.users
    kwargs = dict(node.kwargs)
    name = _activation(user)
    if name is not None and _float32(user):
        place = "last_epilogue" if "residual" in kwargs else "epilogue"
        if place in kwargs or (place == "last_epilogue" and "matrix" in kwargs):
            return None
        kwargs[place] = name
    elif "residual" not in kwargs and (other := _added(node, user)) is not None:
        kwargs["residual"] = other
    else:
        return None
    fused = _new(editor, user, node.target, *node.args, **kwargs)
    user.replace_all_uses_with(fused)
    editor.graph.erase_node(user)
    editor.graph.erase_node(node)
    return fused


def _added(node: Node, user: Node) -> Node | None:
    """Returns the tensor of equal sizes that `user` adds to the result, or None."""
    if user.target is not aten.add.Tensor or user.kwargs or len(user.args) != 2:
        return None
    other = next((operand for operand in user.args if operand is not node), None)
    value, own = _tensor(other), _tensor(node)
    if value is None or own is None or value.dtype != torch.float32 or user.args[0] is user.args[1]:
        return None
    return other if tuple(map(str, value.shape)) == tuple(map(str, own.shape)) else None  # type: ignore[return-value]
