"""Attention over nested tensors of jagged layout on the CPU, as two operators on packed values.

torch computes it by way of nested tensors of strided layout, whose lengths Python reads.
``tracer_core::jagged_attention`` takes packed values and offsets, and attends sequence by sequence;
no size of its result depends on the lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.ops.definitions import declare, implement

_GIVEN = (
    "Tensor query, Tensor key, Tensor value, Tensor query_offsets, Tensor key_offsets, float? scale"
)
_FORWARD = declare(f"jagged_attention({_GIVEN}) -> Tensor")
_BACKWARD = declare(
    f"jagged_attention_backward(Tensor gradient, {_GIVEN}) -> (Tensor, Tensor, Tensor)"
)


def _sequences(query_offsets: Any, key_offsets: Any) -> Iterator[tuple[slice, slice]]:
    """Returns the rows of each sequence among queries and keys, without empty ones."""
    bounds = query_offsets.tolist(), key_offsets.tolist()
    rows = [list(map(slice, bound[:-1], bound[1:])) for bound in bounds]
    return (
        (queries, keys)
        for queries, keys in zip(*rows, strict=True)
        if queries.stop > queries.start and keys.stop > keys.start
    )


def _attend(query: Any, key: Any, value: Any, scale: float | None) -> Any:
    """Attends in one sequence; rows come first, heads second."""
    queries, keys, values = (item.transpose(0, 1).unsqueeze(0) for item in (query, key, value))
    result = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, scale=scale)
    return result.squeeze(0).transpose(0, 1)


def _forward(
    query: Any, key: Any, value: Any, query_offsets: Any, key_offsets: Any, scale: float | None
) -> Any:
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    for queries, keys in _sequences(query_offsets, key_offsets):
        out[queries] = _attend(query[queries], key[keys], value[keys], scale)
    return out


def _differentiable(
    query: Any, key: Any, value: Any, query_offsets: Any, key_offsets: Any, scale: float | None
) -> Any:
    """Computes `_forward` in operators that have derivatives of every order."""
    out = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for queries, keys in _sequences(query_offsets, key_offsets):
            out[queries] = _attend(query[queries], key[keys], value[keys], scale)
    return out


def _backward(
    gradient: Any,
    query: Any,
    key: Any,
    value: Any,
    query_offsets: Any,
    key_offsets: Any,
    scale: float | None,
) -> Any:
    inputs = query, key, value
    result = [torch.zeros(item.shape, dtype=item.dtype, device=item.device) for item in inputs]
    for queries, keys in _sequences(query_offsets, key_offsets):
        rows = queries, keys, keys
        with torch.enable_grad():
            parts = [
                item[at].detach().requires_grad_() for item, at in zip(inputs, rows, strict=True)
            ]
            inside, keys, values = parts
            out = _attend(inside, keys, values, scale)
        created = torch.autograd.grad(out, parts, gradient[queries])
        for first, at, part in zip(result, rows, created, strict=True):
            first[at] = part
    return tuple(result)


def _fake(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


def _backward_fake(gradient: Any, *value: Any) -> Any:
    return tuple(
        torch.empty(item.shape, dtype=item.dtype, device=item.device) for item in value[:3]
    )


implement(_FORWARD, _forward, _fake)
implement(_BACKWARD, _backward, _backward_fake)


class _Attention(torch.autograd.Function):
    """The operators' autograd formula."""

    @staticmethod
    def forward(ctx: Any, scale: float | None, *tensor: torch.Tensor) -> Any:
        ctx.scale = scale
        ctx.save_for_backward(*tensor)
        return _FORWARD(*tensor, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        saved: Any = ctx.saved_tensors
        if not torch.is_grad_enabled():
            result = _BACKWARD(gradient, *saved, ctx.scale)
        else:  # a second derivative is wanted
            query, key, value, queries, keys = saved
            out = _differentiable(query, key, value, queries, keys, ctx.scale)
            result = torch.autograd.grad(out, saved[:3], gradient, create_graph=True)
        return (None, *result, None, None)


def attend(scale: float | None, *tensor: torch.Tensor) -> torch.Tensor:
    """Returns the attention of packed queries, keys and values, by the offsets of queries and of
    keys."""
    attention: Any = _Attention
    out: torch.Tensor = attention.apply(scale, *tensor)
    return out


def jagged_attention(query: Any, key: Any, value: Any, scale: float | None) -> Any:
    """Returns the attention of nested tensors of sizes (batch, heads, rows, width). Target of a
    graph node."""
    packed = [torch_private.jagged_values(item).transpose(0, 1) for item in (query, key, value)]
    offsets = query._offsets, key._offsets
    out = attend(scale, *packed, *offsets)
    bounds = query._min_seqlen_tensor, query._max_seqlen_tensor
    return torch_private.jagged_over(out, offsets[0], None, 1, bounds).transpose(1, 2)
