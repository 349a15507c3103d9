"""LSTM layers: rewrites ``mkldnn_rnn_layer`` as one ``addmm`` for the inputs of all steps (whose
weight `pack_weights` packs) and `packed_ops.lstm` for the recurrence.

Only inference in float32 without packed sequences; other layers stay oneDNN's, as do layers whose
weights are no constants and that have too few steps to pay for packing in each call.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_backend.ir.symbolic_sizes import hint
from inductor_backend.kernels import packed_ops
from inductor_backend.kernels.native import lanes
from inductor_backend.passes.fx_edit import Editor, aten

Node = torch.fx.Node

_LSTM = 2  # the mode of mkldnn_rnn_layer

#: Steps from which packing the weights in each call pays.
STEPS = 8

LAYER = getattr(getattr(aten, "mkldnn_rnn_layer", None), "default", None)


def pack_layers(editor: Editor) -> None:
    """Rewrites every supported layer whose weights are constants."""
    for node in list(editor.graph.nodes):
        if _is_taken(node) and editor.is_constant(*_parameters(node)):
            _rewrite(editor, node)


def pays_per_call(node: Node) -> bool:
    """Checks whether packing the weights in each call pays for this layer."""
    return _is_taken(node) and hint(node.args[0].meta["val"].shape[0]) >= STEPS  # type: ignore[union-attr]


def pack_layers_per_call(editor: Editor) -> None:
    """Rewrites every layer for which `pays_per_call` holds."""
    for node in list(editor.graph.nodes):
        if pays_per_call(node):
            _rewrite(editor, node)


def _parameters(node: Node) -> list[Any]:
    """Returns the weights and, where the layer has them, biases (else these are zeros)."""
    return list(node.args[1 : 5 if node.args[12] else 3])


def _is_taken(node: Node) -> bool:
    if node.target is not LAYER or len(node.args) != 16 or node.kwargs:
        return False
    x, *_, hidden, cells = node.args[:7]
    batch_sizes, mode, units = node.args[8:11]
    training = node.args[15]
    operands = [x, hidden, cells, *_parameters(node)]
    values = [operand.meta["val"] for operand in operands if isinstance(operand, Node)]
    return bool(
        mode == _LSTM
        and not batch_sizes
        and not training
        and len(values) == len(operands)
        and all(
            isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in values
        )
        and isinstance(units, int)
        and units % lanes() == 0
        and [value.dim() for value in values] == [3, 2, 2, 2, 2, 1, 1][: len(values)]
        and all(user.args[1] in (0, 1, 2) for user in node.users)
    )


def _rewrite(editor: Editor, node: Node) -> None:
    x, of_input, of_hidden, bias, more, hidden, cells, backwards = node.args[:8]
    units, has_biases = node.args[10], node.args[12]
    assert isinstance(x, Node) and isinstance(units, int)
    steps, batch, width = x.meta["val"].shape
    new = editor.before(node)

    # reorder the weights' rows from (gate, unit) to (group of units, gate, unit of the group)
    split = new(aten.view.default, of_hidden, [4, units // lanes(), lanes(), units])
    order = new(aten.permute.default, split, [1, 0, 2, 3])
    dense = new(aten.clone.default, order, memory_format=torch.contiguous_format)
    grouped = new(aten.view.default, dense, [4 * units, units])

    rows = new(
        aten.view.default,
        new(aten.clone.default, x, memory_format=torch.contiguous_format),
        [steps * batch, width],
    )
    matrix = new(aten.t.default, of_input)
    if has_biases:
        inputs = new(aten.addmm.default, new(aten.add.Tensor, bias, more), rows, matrix)
    else:
        inputs = new(aten.mm.default, rows, matrix)
    numbers = packed_ops.numbers_of(packed_ops.matrix_geometry(units, 4 * units))
    packed = new(packed_ops.pack, grouped, numbers)
    flat = new(packed_ops.lstm, inputs, packed, hidden, cells, steps, bool(backwards))
    end = steps * batch * units
    results = new(aten.view.default, new(aten.slice.Tensor, flat, 0, 0, end), [steps, batch, units])
    last = new(aten.slice.Tensor, flat, 0, end, end + batch * units)
    result = {
        0: results,
        1: new(aten.select.int, results, 0, 0 if backwards else -1),
        2: new(aten.view.default, last, [batch, units]),
    }
    for user in list(node.users):
        user.replace_all_uses_with(result[user.args[1]])  # type: ignore[index]
        editor.graph.erase_node(user)
    editor.graph.erase_node(node)
