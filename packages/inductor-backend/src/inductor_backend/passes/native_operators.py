"""Rewrites operators that have no kernel of ours into some that have, for graphs that are to run
without ATen, whether or not that is faster.

Matmuls that are scaled, or added to a matrix, become a matmul and loops; matmuls of other dtypes
than float32 become sums of products; attention of any length is ours; convolutions over lines are
some over images of one row; transposed ones convolve an image with zeros between its pixels; small
groups have our dense kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.passes.attention import FLASH, native_attention
from inductor_backend.passes.frozen_rewrites import packed_weight_convolution, put
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from tracer_core.plugin_api import CompileSpec

Node = torch.fx.Node

#: Dtypes whose products are summed in float32.
_LOW = frozenset({torch.bfloat16, torch.float16})


def with_native_operators(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy with operators of ours."""
    if not any(node.target in _RULES for node in gm.graph.nodes):
        return gm
    editor = Editor(copy_of(gm), ())
    for node in list(editor.graph.nodes):
        rule = _RULES.get(node.target)
        if rule is not None:
            rule(editor, node)
    return editor.gm


def _value(node: Any) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


# matmuls ------------------------------------------------------------------------------------------


def _matmul(editor: Editor, node: Node) -> None:
    """Makes a matmul of another dtype than float32 a sum of products."""
    a, b = node.args
    if _value(a).dtype != torch.float32:
        put(editor, node, _in_dtype(editor, node, _summed(editor, node, a, b), _value(node).dtype))


def _summed(editor: Editor, node: Node, a: Any, b: Any) -> Node:
    """Returns a matmul as a sum of products, in float32 for 16 bits."""
    new = editor.before(node)
    dtype = torch.float32 if _value(a).dtype in _LOW else _value(a).dtype
    a, b = (_in_dtype(editor, node, value, dtype) for value in (a, b))
    rank = _value(a).dim()
    terms = new(aten.mul.Tensor, new(aten.unsqueeze.default, a, rank),
                  new(aten.unsqueeze.default, b, rank - 2))  # fmt: skip
    return new(aten.sum.dim_IntList, terms, [rank - 1], dtype=dtype)  # ints wrap, as in eager


def _in_dtype(editor: Editor, node: Node, value: Any, dtype: torch.dtype) -> Any:
    if _value(value).dtype == dtype:
        return value
    return editor.call(node, aten._to_copy.default, value, dtype=dtype)


def _scaled_or_added(matmul: Any) -> Callable[[Editor, Node], None]:
    """Returns the rule for ``beta * added + alpha * (a @ b)``, which is rounded once."""

    def rule(editor: Editor, node: Node) -> None:
        added, a, b = node.args
        beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
        dtype = _value(added).dtype
        simple = (beta, alpha) == (1, 1)
        if simple and _value(added).dim() == 1 and dtype == torch.float32:
            return  # a bias, which the kernel adds
        if alpha == 0 or (dtype in _LOW and not simple):
            return  # whether a NaN of the product counts, and where it is rounded, is the library's
        if dtype == torch.float32:
            result = editor.call(node, matmul, a, b)
        else:
            result = _summed(editor, node, a, b)
        if alpha != 1:
            result = editor.call(node, aten.mul.Tensor, result, alpha)
        if beta != 0:  # else it is not read, whatever it holds
            added = _in_dtype(editor, node, added, _value(result).dtype)
            if beta != 1:
                added = editor.call(node, aten.mul.Tensor, added, beta)
            result = editor.call(node, aten.add.Tensor, result, added)
        put(editor, node, _in_dtype(editor, node, result, dtype))

    return rule


# convolutions -------------------------------------------------------------------------------------


def _convolution(editor: Editor, node: Node) -> None:
    x, transposed = node.args[0], node.args[6]
    if _value(x).dtype != torch.float32:
        return
    if _value(x).dim() == 3:
        node = _lines(editor, node)
    elif _value(x).dim() != 4:
        return
    if transposed:
        node = _transposed(editor, node)
    if node.args[8] != 1:
        own = packed_weight_convolution(editor, node, always=True)
        if own is not None:
            put(editor, node, own)


def _lines(editor: Editor, node: Node) -> Node:
    """Puts a two-dimensional convolution in a one-dimensional one's place, and returns it."""
    x, weight, bias, *numbers, transposed, output_padding, groups = node.args
    images, filters = (editor.call(node, aten.unsqueeze.default, value, 2) for value in (x, weight))
    steps = [[first, *number] for first, number in zip((1, 0, 1), numbers, strict=True)]  # type: ignore[misc]
    result = editor.call(
        node, aten.convolution.default, images, filters, bias, *steps, transposed,
        [0, *output_padding], groups,  # type: ignore[misc]
    )  # fmt: skip
    put(editor, node, editor.call(node, aten.squeeze.dim, result, 2))
    return result


def _transposed(editor: Editor, node: Node) -> Node:
    """Puts a convolution in a transposed one's place, and returns it: of the image with zeros
    between its pixels and around it, with the filters flipped."""
    inputs: Any = node.args
    x, weight, bias, stride, padding, dilation, _, output_padding, groups = inputs
    new = editor.before(node)
    batch, channels, height, width = _value(x).shape
    _, inside, *kernel_size = _value(weight).shape
    (sh, sw) = stride
    apart = new(aten.reshape.default, x, [batch, channels, height, 1, width, 1])
    apart = new(aten.constant_pad_nd.default, apart, [0, sw - 1, 0, 0, 0, sh - 1], 0.0)
    image = new(aten.view.default, apart, [batch, channels, height * sh, width * sw])
    around: list[int] = []
    for k in (1, 0):
        reach = dilation[k] * (kernel_size[k] - 1) - padding[k]
        around += [reach, reach + output_padding[k] - (stride[k] - 1)]
    image = new(aten.constant_pad_nd.default, image, around, 0.0)
    shape = [groups, channels // groups, inside, *kernel_size]
    filters = new(aten.transpose.int, new(aten.reshape.default, weight, shape), 1, 2)
    shape = [groups * inside, channels // groups, *kernel_size]
    filters = new(aten.flip.default, new(aten.reshape.default, filters, shape), [2, 3])
    result = new(
        aten.convolution.default,
        image,
        filters,
        bias,
        [1, 1],
        [0, 0],
        dilation,
        False,
        [0, 0],
        groups,
    )
    put(editor, node, result)
    return result


def _attention(editor: Editor, node: Node) -> None:
    native_attention(editor, node, always=True)


_RULES = {
    aten.mm.default: _matmul,
    aten.bmm.default: _matmul,
    aten.addmm.default: _scaled_or_added(aten.mm.default),
    aten.baddbmm.default: _scaled_or_added(aten.bmm.default),
    aten.convolution.default: _convolution,
    FLASH: _attention,
}
