"""Calls cuDNN's recurrent layers on the weights where they lie.

cuDNN reads all weights of an RNN from one buffer. ``flatten_parameters`` of ``torch.nn.RNNBase`` lays
them out in it, which eager's ``lstm`` and ``gru`` find out from the weights' addresses. In a graph, whose
fake weights have no addresses, ``_cudnn_rnn`` gets no buffer, and copies the weights in each call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.plugin_api import operators

aten = operators("aten")


def cudnn_rnn(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    count: int,
    buffer: torch.Tensor | None,
    *rest: Any,
) -> Sequence[torch.Tensor]:
    """Returns ``aten._cudnn_rnn`` of these arguments. count: weights of a layer."""
    if buffer is None:
        buffer = _buffer_of(x, weights, count, rest)
    result: Sequence[torch.Tensor] = aten._cudnn_rnn.default(x, weights, count, buffer, *rest)
    return result


def _buffer_of(
    x: torch.Tensor, weights: Sequence[torch.Tensor], count: int, rest: Sequence[Any]
) -> torch.Tensor | None:
    """Returns the weights' memory as one tensor where they lie in it as cuDNN expects, else None."""
    first = weights[0]
    storage = first.untyped_storage()
    if any(weight.untyped_storage().data_ptr() != storage.data_ptr() for weight in weights):
        return None
    _, _, mode, hidden, projected, layers, batch_first, _, _, bidirectional = rest[:10]
    sizes = tuple(tuple(weight.shape) for weight in weights)
    how = (count, x.shape[-1], mode, hidden, projected, layers, batch_first, bidirectional)
    numel, offsets = _layout(sizes, first.dtype, first.device, how)
    begin = first.storage_offset() - offsets[0]
    places = tuple(weight.storage_offset() - begin for weight in weights)
    fits = begin >= 0 and (begin + numel) * first.itemsize <= storage.nbytes()
    if places != offsets or not fits or not all(weight.is_contiguous() for weight in weights):
        return None
    return first.as_strided((numel,), (1,), begin)


@functools.lru_cache(maxsize=256)
def _layout(
    sizes: tuple[tuple[int, ...], ...],
    dtype: torch.dtype,
    device: torch.device,
    how: tuple[Any, ...],
) -> tuple[int, tuple[int, ...]]:
    """Returns the elements of cuDNN's buffer for weights of these sizes, and where each begins in it,
    as `flatten_parameters` lays them out."""
    weights = [torch.empty(size, dtype=dtype, device=device) for size in sizes]
    with torch.no_grad():
        buffer = aten._cudnn_rnn_flatten_weight.default(weights, *how)
    return buffer.numel(), tuple(int(weight.storage_offset()) for weight in weights)
