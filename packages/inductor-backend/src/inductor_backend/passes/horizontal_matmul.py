"""Horizontal fusion of matmuls: computes several ``mm``/``addmm`` of one input with constant
weights as one (queries, keys and values of attention).

Each former result is a slice of columns; the weights are concatenated once, when the constants are
prepared.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels.selection import pays_to_merge
from inductor_backend.passes.fx_edit import Editor, aten
from tracer_core.plugin_api import Trait, overloads_with

Node = torch.fx.Node

_VIEWS = overloads_with(Trait.RESHAPES)


def merge_matmuls(editor: Editor) -> None:
    """Merges float32 matmuls that read the same matrix into one, at the place of the first."""
    groups: dict[Any, list[Node]] = {}
    _constants_first(editor)
    for node in editor.graph.nodes:
        parts = _parts(editor, node)
        if parts is not None:
            a, b, bias = parts
            groups.setdefault((_source(a), bias is None, b.meta["val"].shape[0]), []).append(node)
    for nodes in groups.values():
        if len(nodes) > 1:
            _merge(editor, nodes)


def _constants_first(editor: Editor) -> None:
    """Moves constant nodes up to the placeholders: the merged matmul needs all weights at its first
    place."""
    needed = {
        source for node in editor.constant for source in node.all_input_nodes
    } | editor.constant
    last = editor.graph.find_nodes(op="placeholder")[-1]
    for node in [
        node
        for node in editor.graph.nodes
        if node.op in ("call_function", "get_attr") and node in needed
    ]:
        last.append(node)
        last = node


def _parts(editor: Editor, node: Node) -> tuple[Node, Node, Node | None] | None:
    """Returns (a, b, bias) of a float32 matmul with constant b and a constant bias per column, which
    may be merged, else None."""
    args: tuple[Any, ...] = node.args
    if node.target is aten.mm.default:
        a, b, bias = *args, None
    elif node.target is aten.addmm.default and not node.kwargs and len(args) == 3:
        bias, a, b = args
    else:
        return None
    if node in editor.constant or not editor.is_constant(b, bias):
        return None
    tensors = [value.meta["val"] for value in (a, b, bias) if value is not None]
    if any(tensor.dtype != torch.float32 for tensor in tensors):
        return None
    if not pays_to_merge(hint(a.meta["val"].shape[0])):
        return None
    columns = b.meta["val"].shape[1]
    if bias is not None and tuple(bias.meta["val"].shape) != (columns,):
        return None
    return a, b, bias


def _source(a: Node) -> Any:
    """Returns a key that is equal for two views of equal sizes of one tensor."""
    if a.target in _VIEWS and isinstance(a.args[0], Node):
        sizes = tuple(str(size) for size in a.meta["val"].shape)
        return a.args[0], sizes
    return a, ()


def _merge(editor: Editor, nodes: list[Node]) -> None:
    first = nodes[0]
    result = [parts for parts in (_parts(editor, node) for node in nodes) if parts is not None]
    a = result[0][0]
    b = editor.call(first, aten.cat.default, [parts[1] for parts in result], 1)
    if result[0][2] is None:
        full = editor.call(first, aten.mm.default, a, b)
    else:
        bias = editor.call(first, aten.cat.default, [parts[2] for parts in result])
        full = editor.call(first, aten.addmm.default, bias, a, b)
    pieces, start = [], 0
    for parts in result:
        columns = int(parts[1].meta["val"].shape[1])
        pieces.append(editor.call(first, aten.slice.Tensor, full, 1, start, start + columns))
        start += columns
    for node, piece in zip(nodes, pieces, strict=True):  # nothing is inserted before an erased node
        node.replace_all_uses_with(piece)
        editor.graph.erase_node(node)
