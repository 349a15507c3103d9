"""Packed sequences: recurrent layers over them, whose kernels read how many sequences each step has.

Fakes of these operators need no more than the sizes: how many rows the packed data have and how many
steps there are depends on the lengths, and are unbacked symbols; the first step has all sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core.fx_capture.function_traits import SUBSCRIPTS, operator_name
from tracer_core.torch_private.needed import pytree

#: Recurrent layers -> whether they have a state beside the hidden one.
_LAYERS = {"lstm": True, "gru": False, "rnn_tanh": False, "rnn_relu": False}


class PackedSequences:
    """The packed sequences of one trace. Mutable."""

    def __init__(self) -> None:
        #: id of a tensor of batch sizes, or of its first element -> (the tensor, the number of
        #: sequences).
        self._batches: dict[int, tuple[torch.Tensor, Any]] = {}
        self._firsts: dict[int, tuple[torch.Tensor, Any]] = {}

    def note(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Notes what a recorded operator tells of batch sizes."""
        if operator_name(func) == "_pack_padded_sequence" and len(args) == 3:
            value, _, batch_first = args
            self._batches[id(result[1])] = result[1], value.shape[0 if batch_first else 1]
        elif func in SUBSCRIPTS and len(args) == 2 and type(args[1]) is int and args[1] == 0:
            known = self._batches.get(id(args[0]))
            if known is not None:
                self._firsts[id(result)] = result, known[1]

    def number(self, fake: Any) -> Any:
        """Returns the number of sequences if a tensor is the first of some batch sizes."""
        known = self._firsts.get(id(fake))
        return None if known is None else known[1]

    def replacement(self, func: Any, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """Returns what runs in an operator's place on fakes; None for operators on anything else."""
        name = operator_name(func)
        if name in _LAYERS and len(args) == 9 and isinstance(args[1], torch.Tensor):
            state = args[2] if _LAYERS[name] else [args[2]]
            is_state = isinstance(state, (tuple, list)) and isinstance(args[3], (tuple, list))
            return _layer if is_state and args[1].dim() == 1 else None
        if name == "_pad_packed_sequence" and len(args) == 5:
            known = self._batches.get(id(args[1]))
            if known is not None:
                return lambda *inputs: _padded(known[1], *inputs)
        return None


def _layer(
    data: Any, batch_sizes: Any, state: Any, params: Any, biases: Any, layers: Any, dropout: Any,
    train: Any, bidirectional: bool,
) -> Any:  # fmt: skip
    """The sizes, dtypes and gradients of a recurrent layer over packed data."""
    states = state if isinstance(state, (tuple, list)) else [state]
    wide = states[0].shape[-1] * (2 if bidirectional else 1)
    result = [
        data.new_zeros((data.shape[0], wide)),
        *(item.new_zeros(item.shape) for item in states),
    ]
    return tuple(_with_history(item, (data, *states, *params)) for item in result)


def _padded(
    batch: Any, data: Any, batch_sizes: Any, batch_first: bool, value: Any, total: int
) -> Any:
    steps = total if total > 0 else batch_sizes.shape[0]
    result = _with_history(data.new_zeros((steps, batch, *data.shape[1:])), (data,))
    lengths = torch.empty((batch,), dtype=torch.int64)
    return result.transpose(0, 1) if batch_first else result, lengths


def _with_history(value: Any, inputs: Any) -> Any:
    """Returns a fake that requires a gradient where one of its inputs does."""
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and torch.is_grad_enabled():
            value = value + leaf.sum().to(value.dtype)
    return value
