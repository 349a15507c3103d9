"""Rewrites operators that have no kernel of ours into some that have, for graphs that are to run
without ATen, whether or not that is faster.

Products that are scaled, or added to a matrix, become a product and loops; attention of any length
is ours; a convolution over lines is one over images of one row.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.passes.attention import FLASH, own_attention
from inductor_backend.passes.fx_edit import Editor, aten, copy_of
from tracer_core.plugin_api import CompileSpec

Node = torch.fx.Node


def with_own_operators(gm: torch.fx.GraphModule, spec: CompileSpec) -> torch.fx.GraphModule:
    """Returns the graph, or a copy with operators of ours."""
    if not any(node.target in _RULES for node in gm.graph.nodes):
        return gm
    editor = Editor(copy_of(gm), ())
    for node in list(editor.graph.nodes):
        rule = _RULES.get(node.target)
        if rule is not None:
            rule(editor, node)
    return editor.gm


def _put(editor: Editor, old: Node, new: Node) -> None:
    new.meta["val"] = old.meta["val"]
    old.replace_all_uses_with(new)
    editor.graph.erase_node(old)


def _sum_of_product(product: Any) -> Any:
    """Returns the rule for ``beta * added + alpha * (a @ b)``."""

    def rule(editor: Editor, node: Node) -> None:
        added, a, b = node.args
        beta, alpha = (node.kwargs.get(name, 1) for name in ("beta", "alpha"))
        assert isinstance(added, Node)
        if (beta, alpha) == (1, 1) and added.meta["val"].dim() == 1:
            return  # a bias, which the kernel adds
        if alpha == 0:
            return  # whether a NaN of the product counts is the library's choice
        result = editor.call(node, product, a, b)
        if alpha != 1:
            result = editor.call(node, aten.mul.Tensor, result, alpha)
        if beta == 0:  # what is added is not read, whatever it holds
            _put(editor, node, result)
            return
        if beta != 1:
            added = editor.call(node, aten.mul.Tensor, added, beta)
        _put(editor, node, editor.call(node, aten.add.Tensor, result, added))

    return rule


def _lines(editor: Editor, node: Node) -> None:
    """Makes a one-dimensional convolution a two-dimensional one."""
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    assert isinstance(x, Node)
    if x.meta["val"].dim() != 3 or transposed:
        return
    images, filters = (editor.call(node, aten.unsqueeze.default, one, 2) for one in (x, weight))
    steps: list[Any] = [
        [first, *numbers]  # type: ignore[misc]
        for first, numbers in ((1, stride), (0, padding), (1, dilation))
    ]
    result = editor.call(
        node, aten.convolution.default, images, filters, bias, *steps, False,
        [0, *output_padding], groups,  # type: ignore[misc]
    )  # fmt: skip
    _put(editor, node, editor.call(node, aten.squeeze.dim, result, 2))


def _attention(editor: Editor, node: Node) -> None:
    own_attention(editor, node, always=True)


_RULES = {
    aten.addmm.default: _sum_of_product(aten.mm.default),
    aten.baddbmm.default: _sum_of_product(aten.bmm.default),
    aten.convolution.default: _lines,
    FLASH: _attention,
}
