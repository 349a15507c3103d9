"""Products on GPUs whose rows do not begin at multiples of 16 bytes (vocabularies of 50257 words) are padded.

In: an ATen graph on a CUDA device. Out: the same graph, or a copy in which such products multiply padded operands and give
a part of their result. What always holds: what is padded is zero along the summed dimension and dropped along the others,
so that results differ by rounding alone; only products whose copies cost less than they gain are padded: tensor cores
read rows of any other alignment an element at a time (H100, 2048 x 768 x 50257 in TF32: 1.26 ms, padded 0.46, copies 0.37).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor_backend.freezing.graph_edit import Editor, aten, copy_of
from inductor_backend.torch_private import tf32_allowed

#: Multiplications and additions for each copied byte from which padding pays.
WORK_OF_A_BYTE = 200


def with_aligned_products(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph to lower."""
    if not any(_padding(node) for node in gm.graph.nodes):
        return gm
    editor = Editor(copy_of(gm), ())
    for node in list(editor.graph.nodes):
        padding = _padding(node)
        if padding is not None:
            _pad(editor, node, *padding)
    editor.graph.eliminate_dead_code()
    return editor.gm


def _padding(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """By how much a product's (rows, columns, terms) are to grow; None where it is fine."""
    if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    if node.kwargs or len(node.args) > 3:  # addmm's factors
        return None
    a, b = (operand.meta["val"] for operand in node.args[-2:])  # type: ignore[union-attr]
    numbers = (*a.shape, *b.shape, *a.stride(), *b.stride())
    if not all(isinstance(n, int) for n in numbers) or 0 in numbers or not _in_tensor_cores(a.dtype):
        return None
    (rows, terms), columns = a.shape, b.shape[1]
    unit = 16 // a.itemsize
    grown = [False, False, columns % unit != 0]  # rows, terms, columns
    grown[1] |= _crooked(a.stride(), 1, unit) or _crooked(b.stride(), 0, unit)
    grown[0] |= _crooked(a.stride(), 0, unit)
    grown[2] |= _crooked(b.stride(), 1, unit)
    if not any(grown):
        return None
    by_rows, by_terms, by_columns = (
        -size % unit if wanted else 0 for size, wanted in zip((rows, terms, columns), grown, strict=True)
    )
    copied = 0
    if by_rows or by_terms:
        copied += rows * terms
    if by_terms or by_columns:
        copied += terms * columns
    if by_rows or by_columns:
        copied += rows * columns
    if not copied or 2 * rows * terms * columns < WORK_OF_A_BYTE * copied * a.itemsize:
        return None
    return by_rows, by_columns, by_terms


def _in_tensor_cores(dtype: torch.dtype) -> bool:
    return dtype in (torch.bfloat16, torch.float16) or (dtype is torch.float32 and tf32_allowed(convolution=False))


def _crooked(strides: Sequence[int], along: int, unit: int) -> bool:
    """Rows lie along this dimension, and do not all begin where the first does in its 16 bytes."""
    return strides[along] == 1 and strides[1 - along] % unit != 0


def _pad(editor: Editor, node: torch.fx.Node, rows: int, columns: int, terms: int) -> None:
    *bias, a, b = node.args
    grown_a = _grown(editor, node, a, rows, terms)  # type: ignore[arg-type]
    grown_b = _grown(editor, node, b, terms, columns)  # type: ignore[arg-type]
    result = editor.call(node, aten.mm.default, grown_a, grown_b)
    for dim, added in enumerate((rows, columns)):
        if added:
            result = editor.call(node, aten.slice.Tensor, result, dim, 0, node.meta["val"].shape[dim])
    if bias:
        result = editor.call(node, aten.add.Tensor, result, *bias)
    result.meta["val"] = node.meta["val"]  # with the strides that the program was promised
    node.replace_all_uses_with(result)
    editor.graph.erase_node(node)


def _grown(editor: Editor, like: torch.fx.Node, operand: torch.fx.Node, down: int, right: int) -> torch.fx.Node:
    """The matrix with zeros below and to the right, its rows along the same dimension as before."""
    if not down and not right:
        return operand
    turned = operand.meta["val"].stride(0) == 1
    if turned:
        operand, down, right = editor.call(like, aten.permute.default, operand, [1, 0]), right, down
    grown = editor.call(like, aten.constant_pad_nd.default, operand, [0, right, 0, down], 0.0)
    return editor.call(like, aten.permute.default, grown, [1, 0]) if turned else grown
