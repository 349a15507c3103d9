"""Turns batches of matmuls with one matrix into a matmul of all rows, in float32 with its bias.

torch computes linear layers of inputs that are not contiguous (tokens of an image, a mixer's channels,
the projection after attention) as `bmm` with an expanded weight, and adds the bias apart, which 16-bit
floats round before. Our matmuls, their epilogues and packed weights take what this makes of it. On CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels.selection import FEW_ROWS
from inductor_backend.limits import MAX_MIXED_CHANNELS
from inductor_backend.passes.frozen_rewrites import put
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from inductor_backend.torch_private import are_known_to_be
from tracer_core.plugin_api import CompileSpec, Trait, overloads_with

Node = torch.fx.Node

_VIEWS = overloads_with(Trait.RESHAPES)


def with_linear_layers(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy with such batches replaced."""
    if not any(_is_of_all_rows(node) or _is_narrow(node) for node in gm.graph.nodes):
        return gm
    editor = Editor(copy_of(gm), ())
    for node in list(editor.graph.nodes):
        if _is_of_all_rows(node):
            _replace(editor, node)
        elif _is_narrow(node):
            _with_bias(editor, node, *node.args)
    return editor.gm


def _is_narrow(node: Node) -> bool:
    """Checks for a matmul of a few columns, which may become a loop (`lowering.mixing`)."""
    if node.target is not aten.mm.default or node.meta["val"].dtype != torch.float32:
        return False
    columns = node.meta["val"].shape[1]
    return isinstance(columns, int) and columns <= MAX_MIXED_CHANNELS


def _is_of_all_rows(node: Node) -> bool:
    """Checks for a batch with one matrix, whose rows lie one after the other, are few, or are copied in
    any case because their dtype is; or for a batch of one matmul."""
    if node.target is not aten.bmm.default:
        return False
    a, b = (source.meta["val"] for source in node.args)  # type: ignore[union-attr]
    if not all(isinstance(size, int) and size for size in (*a.shape[1:], b.shape[2])):
        return False
    one_matrix = isinstance(b.stride(0), int) and b.stride(0) == 0
    if a.dtype in (torch.bfloat16, torch.float16):
        return one_matrix
    numbers = (a.shape[0], *a.stride(), *b.stride())
    if a.dtype != torch.float32 or not all(isinstance(number, int) for number in numbers):
        return False
    follow = a.stride(0) == a.shape[1] * a.stride(1) or a.shape[0] * a.shape[1] <= FEW_ROWS
    return bool(a.shape[0] == 1 or (a.shape[0] != 0 and follow and one_matrix))


def _replace(editor: Editor, node: Node) -> None:
    new = editor.before(node)
    a, b = node.args
    value = node.meta["val"]
    sizes = [-1, *value.shape[1:]]
    if isinstance(value.shape[0], int) and value.shape[0] == 1:
        rows = new(aten.select.int, a, 0, 0)
    else:
        rows = new(aten.reshape.default, a, [-1, a.meta["val"].shape[2]])  # type: ignore[union-attr]
    matrix = new(aten.select.int, b, 0, 0)
    if value.dtype != torch.float32 or not _with_bias(editor, node, rows, matrix, sizes):
        result = new(aten.mm.default, rows, matrix)
        put(editor, node, new(aten.view.default, result, sizes))


def _with_bias(
    editor: Editor, node: Node, rows: Any, matrix: Any, sizes: Sequence[int] | None = None
) -> bool:
    """Puts a matmul with its bias in place of `node` and the only reader, if that adds one. sizes: of
    the node, where it is a batch."""
    chain = [node]
    while len(chain[-1].users) == 1 and next(iter(chain[-1].users)).target in _VIEWS:
        chain += chain[-1].users
    bias = _bias(chain[-1], node.meta["val"].shape[-1])
    if bias is None:
        return False
    (added,) = chain[-1].users
    like = editor.before(added)
    result = like(aten.addmm.default, bias, rows, matrix)
    if sizes is not None:
        result = like(aten.view.default, result, sizes)
    for view in chain[1:]:
        result = like(view.target, result, *view.args[1:], **view.kwargs)
    put(editor, added, result)
    for dead in reversed(chain):
        editor.graph.erase_node(dead)
    return True


def _bias(last: Node, columns: int) -> Any:
    """Returns the vector that the only reader adds to each row of a value."""
    if len(last.users) != 1 or not are_known_to_be(last.meta["val"].shape[-1:], (columns,)):
        return None
    (user,) = last.users
    if user.target is not aten.add.Tensor or user.kwargs or len(user.args) != 2:
        return None
    other = next((operand for operand in user.args if operand is not last), None)
    value = other.meta.get("val") if isinstance(other, Node) else None
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return None
    return other if are_known_to_be(value.shape, (columns,)) else None
