"""pad_mm: avoids matmuls on GPUs whose rows are not aligned to 16 bytes (vocabularies of 50257
words).

Tensor cores read unaligned rows one element at a time (H100, 2048 x 768 x 50257 in TF32: 1.26 ms;
padded 0.46, copies 0.37). Operands are padded with zeros and the result is sliced, where the copies
cost less than they save; results differ by rounding alone. Where only the result is unaligned and
the graph returns it as it lies (logits), `kernels.unaligned_gemm` writes it in classes of rows
instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor_backend.ir.graph_meta import is_returned
from inductor_backend.ir.symbolic_sizes import SizeVars, hint
from inductor_backend.ir.target import in_tensor_cores
from inductor_backend.kernels import unaligned_gemm
from inductor_backend.kernels.unaligned_gemm import WORK_OF_A_BYTE
from inductor_backend.passes.fx_edit import Editor, aten, copy_of

#: Rows and FLOPs of a class of rows from which its own matmul fills the device.
MIN_ROWS, MIN_WORK = 256, 5e9


def with_padded_matmuls(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns the graph, or a copy with such matmuls replaced."""
    if not any(_in_classes(node) or _padding(node) for node in gm.graph.nodes):
        return gm
    editor = Editor(copy_of(gm), ())
    for node in list(editor.graph.nodes):
        if _in_classes(node):
            node.target = unaligned_gemm.mm
            continue
        padding = _padding(node)
        if padding is not None:
            _pad(editor, node, *padding)
    editor.graph.eliminate_dead_code()
    return editor.gm


def _in_classes(node: torch.fx.Node) -> bool:
    """Checks for a matmul with aligned operands and an unaligned result that the graph returns. The
    number of rows may be symbolic."""
    if node.op != "call_function" or node.target is not aten.mm.default or node.kwargs:
        return False
    a, b = (operand.meta["val"] for operand in node.args)  # type: ignore[union-attr]
    numbers = [SizeVars.expr(n) for n in (*a.stride(), *b.shape, *b.stride())]
    if (
        not all(isinstance(n, int) for n in numbers)
        or 0 in numbers
        or not in_tensor_cores(a.dtype, convolution=False)
    ):
        return False
    (apart, along), (terms, columns), (step, transposed), unit = (
        numbers[:2],
        numbers[2:4],
        numbers[4:],
        16 // a.itemsize,
    )
    if (along, step) != (1, 1) or apart % unit or transposed % unit or not columns % unit:
        return False
    rows = hint(a.shape[0]) // unaligned_gemm.classes(columns, unit)
    filled = rows >= MIN_ROWS and 2 * rows * terms * columns >= MIN_WORK and columns >= 2 * unit
    return filled and is_returned(node)


def _padding(node: torch.fx.Node) -> tuple[int, int, int] | None:
    """Returns by how much a matmul's (rows, columns, terms) must grow; None where padding does not
    pay."""
    if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    if node.kwargs or len(node.args) > 3:  # addmm's alpha and beta
        return None
    a, b = (operand.meta["val"] for operand in node.args[-2:])  # type: ignore[union-attr]
    numbers = (*a.shape, *b.shape, *a.stride(), *b.stride())
    if (
        not all(isinstance(n, int) for n in numbers)
        or 0 in numbers
        or not in_tensor_cores(a.dtype, convolution=False)
    ):
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
        -size % unit if wanted else 0
        for size, wanted in zip((rows, terms, columns), grown, strict=True)
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


def _crooked(strides: Sequence[int], along: int, unit: int) -> bool:
    """Checks that rows lie along this dimension and do not all have the alignment of the first."""
    return strides[along] == 1 and strides[1 - along] % unit != 0


def _pad(editor: Editor, node: torch.fx.Node, rows: int, columns: int, terms: int) -> None:
    *bias, a, b = node.args
    grown_a = _grown(editor, node, a, rows, terms)  # type: ignore[arg-type]
    grown_b = _grown(editor, node, b, terms, columns)  # type: ignore[arg-type]
    result = editor.call(node, aten.mm.default, grown_a, grown_b)
    for dim, added in enumerate((rows, columns)):
        if added:
            result = editor.call(
                node, aten.slice.Tensor, result, dim, 0, node.meta["val"].shape[dim]
            )
    if bias:
        result = editor.call(node, aten.add.Tensor, result, *bias)
    result.meta["val"] = node.meta["val"]  # eager's strides
    node.replace_all_uses_with(result)
    editor.graph.erase_node(node)


def _grown(
    editor: Editor, like: torch.fx.Node, operand: torch.fx.Node, down: int, right: int
) -> torch.fx.Node:
    """Pads the matrix with zeros below and to the right and keeps its memory order."""
    if not down and not right:
        return operand
    transposed = operand.meta["val"].stride(0) == 1
    if transposed:
        operand, down, right = editor.call(like, aten.permute.default, operand, [1, 0]), right, down
    grown = editor.call(like, aten.constant_pad_nd.default, operand, [0, right, 0, down], 0.0)
    return editor.call(like, aten.permute.default, grown, [1, 0]) if transposed else grown
