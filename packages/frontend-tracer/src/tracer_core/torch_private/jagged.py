"""Nested tensors of jagged layout: packed values, and where each sequence begins.

Their handlers of operators are torch's own and read their arguments alone. Where a graph is lowered
(its tensors are functional), autograd Functions of ours stand in place of the two operators that
make views: functionalization would wrap a nested tensor, whose sizes C++ code then asks for where
it may not fail.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from tracer_core.torch_private.functional_tensors import is_functional
from tracer_core.torch_private.subclasses import functions_off

#: What a nested tensor consists of.
JAGGED_PARTS = (
    "_values", "_offsets", "_lengths", "_min_seqlen_tensor", "_max_seqlen_tensor", "_ragged_idx",
)  # fmt: skip


def is_jagged(value: Any) -> bool:
    """Returns whether a value is a nested tensor of jagged layout."""
    module = sys.modules.get("torch.nested._internal.nested_tensor")
    return module is not None and type(value) is module.NestedTensor


def attends_in_parts(query: Any, key: Any, value: Any) -> bool:
    """Returns whether torch computes the attention of nested tensors on the CPU by its formula,
    sequence by sequence."""
    from torch.nested._internal import sdpa

    inputs = query, key, value
    packed = all(
        is_jagged(item)
        and item._lengths is None
        and item._ragged_idx == 2
        and len(item._size) == 4
        and item.device.type == "cpu"
        for item in inputs
    )
    if not packed or len({item.dtype for item in inputs}) > 1:
        return False
    sdpa._validate_sdpa_input(query, key, value, None, 0.0, False, None)
    chosen = sdpa._select_sdp_backend(query, key, value, None, 0.0, False, False)
    return bool(chosen == sdpa.SDPBackend.MATH)


def jagged_rank(value: Any) -> int:
    """Returns the number of dimensions of a nested tensor."""
    return len(value._size)


def is_nested_int(value: Any) -> bool:
    """Returns whether a symbol is the size of a nested tensor's ragged dimension."""
    return bool(value.node.is_nested_int())


def jagged_view(
    values: Any, offsets: Any, lengths: Any, ragged_idx: int, shortest: Any, longest: Any
) -> Any:
    """Returns the nested tensor over packed values. Target of a graph node."""
    bounds = [None if value is None else torch.zeros(value, 0) for value in (shortest, longest)]
    return jagged_over(values, offsets, lengths, ragged_idx, bounds)


def jagged_over(values: Any, offsets: Any, lengths: Any, ragged_idx: int, bounds: Any) -> Any:
    """Returns the nested tensor over packed values. bounds: tensors whose sizes are the least and
    the greatest length, or None."""
    from torch.nested._internal import nested_tensor

    if is_functional(values):
        result: Any = _View
        return result.apply(values, offsets, lengths, ragged_idx, *bounds)
    view: Any = torch._nested_view_from_jagged
    with functions_off():
        dummy = nested_tensor._nt_view_dummy()
    return view(values, offsets, dummy, lengths, ragged_idx, *bounds)


def jagged_values(nested: Any) -> Any:
    """Returns the packed values of a nested tensor. Target of a graph node."""
    if is_functional(nested._values):
        of: Any = _Values
        return of.apply(nested)
    return torch._nested_get_values(nested)


#: torch's function that returns the packed values.
NESTED_VALUES: Any = getattr(torch, "_nested_get_values", None)


def _made(values: Any, offsets: Any, lengths: Any, ragged_idx: int, bounds: Any) -> Any:
    from torch.nested._internal.nested_tensor import NestedTensor

    shortest, longest = bounds
    known = {"min_seqlen": shortest, "max_seqlen": longest}
    return NestedTensor(
        values,
        offsets,
        lengths=lengths,
        _ragged_idx=ragged_idx,
        _metadata_cache={name: item for name, item in known.items() if item is not None},
    )


class _View(torch.autograd.Function):
    """The nested tensor over packed values."""

    @staticmethod
    def forward(
        ctx: Any, values: Any, offsets: Any, lengths: Any, ragged_idx: int, *bounds: Any
    ) -> Any:
        return _made(values.detach(), offsets, lengths, ragged_idx, bounds)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (gradient._values, None, None, None, None, None)


class _Values(torch.autograd.Function):
    """The packed values of a nested tensor."""

    @staticmethod
    def forward(ctx: Any, nested: Any) -> Any:
        bounds = nested._min_seqlen_tensor, nested._max_seqlen_tensor
        ctx.of = nested._offsets, nested._lengths, nested._ragged_idx, bounds
        return nested._values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _made(gradient, *ctx.of)
