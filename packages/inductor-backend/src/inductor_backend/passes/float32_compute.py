"""Computes matmuls, convolutions and attention of 16-bit floats in float32 where the processor multiplies none,
and attention of one query everywhere.

Without such instructions ATen's and oneDNN's kernels for 16-bit floats are many times slower than those for
float32. Sums are the same: ATen, too, adds the exact products in float32 and rounds the result once. The
kernel for attention of one query reads 16-bit keys and values, and takes the query in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.ir.graph_meta import OF_STORED_VALUES
from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels import attention
from inductor_backend.passes.attention import FLASH
from inductor_backend.passes.frozen_rewrites import is_widened, put
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from inductor_backend.torch_private import multiplies_16_bits
from tracer_core.plugin_api import CompileSpec, Phase

Node = torch.fx.Node

_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_DTYPES = (torch.bfloat16, torch.float16)


def with_float32_compute(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy whose matmuls, convolutions and attention are in float32."""
    slow = {dtype for dtype in _DTYPES if not multiplies_16_bits(dtype)}

    def is_slow(node: Node) -> bool:
        if node.target not in _RULES or (dtype := _dtype(node)) not in _DTYPES:
            return False
        return dtype in slow or (spec.phase is Phase.INFERENCE and _has_one_query(node))

    if not any(map(is_slow, gm.graph.nodes)):
        return gm
    editor = Editor(copy_of(gm), ())
    for node in list(editor.graph.nodes):
        if is_slow(node) and not is_widened(node):
            _RULES[node.target](editor, node)
    return editor.gm


def _has_one_query(node: Node) -> bool:
    """Returns whether a node is attention for the kernel that reads keys and values once."""
    if node.target is not FLASH:
        return False
    query, key, value = (source.meta["val"].shape for source in node.args[:3])  # type: ignore[union-attr]
    return hint(query[2]) == 1 and attention.reads_once(1, *map(hint, (*key[2:], value[3])))


def _dtype(node: Node) -> torch.dtype | None:
    """Returns the dtype of all floating-point tensors that a node takes; None where they differ."""
    dtypes = {
        source.meta["val"].dtype
        for source in node.all_input_nodes
        if isinstance(source.meta.get("val"), torch.Tensor)
        and source.meta["val"].is_floating_point()
        and not (node.target is _FLASH_BACKWARD and source is node.args[5])  # logsumexp is float32
    }
    return dtypes.pop() if len(dtypes) == 1 else None


def _in_float32(editor: Editor, node: Node) -> Node:
    """Inserts the same call with 16-bit operands in float32."""

    def operand(source: Node) -> Node:
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES:
            return source
        result = editor.call(node, aten._to_copy.default, source, dtype=torch.float32)
        result.meta[OF_STORED_VALUES] = True
        return result

    widened: dict[Node, Node] = {source: operand(source) for source in node.all_input_nodes}
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), widened.__getitem__)
    return editor.call(node, node.target, *args, **kwargs)


def _single(editor: Editor, node: Node) -> None:
    """A call with one result, which is rounded."""
    result = _in_float32(editor, node)
    put(editor, node, _rounded(editor, node, result))


def _rounded(editor: Editor, like: Node, result: Node) -> Node:
    return editor.call(like, aten._to_copy.default, result, dtype=like.meta["val"].dtype)


def _tuple(editor: Editor, node: Node) -> None:
    """A call with several results, of which those of 16 bits are rounded."""
    results = _in_float32(editor, node)
    for user in list(node.users):
        value = user.meta.get("val")
        assert user.target is operator.getitem
        part = editor.call(user, operator.getitem, results, user.args[1])
        narrow = isinstance(value, torch.Tensor) and value.dtype in _DTYPES
        put(editor, user, _rounded(editor, user, part) if narrow else part)
    editor.graph.erase_node(node)


_RULES: dict[Any, Callable[[Editor, Node], None]] = {
    aten.mm.default: _single,
    aten.addmm.default: _single,
    aten.bmm.default: _single,
    aten.baddbmm.default: _single,
    aten.convolution.default: _single,
    aten.convolution_backward.default: _tuple,
    FLASH: _tuple,
    _FLASH_BACKWARD: _tuple,
}
