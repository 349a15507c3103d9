"""Attention by our own kernel (native/attention.cpp), for up to a few hundred keys.

In: float32 CPU tensors of four dimensions (batch, head, row, value) with dense rows. Out: the
result, laid out as (batch, row, head, value), as ATen's flash kernel has it. What always holds:
`pays` says where it is the faster one; a row that sees no key is NaN, as softmax has it, or 0 where
`empty` says so, as scaled_dot_product_attention has it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels import native

#: Keys, and values a head, up to which a head's part fits into a core's cache.
KEYS, VALUES = 512, 128


def pays(keys: int, depth: int, values: int) -> bool:
    """For heads of `keys` keys of `depth` numbers, and values of `values` numbers."""
    return 0 < keys <= KEYS and 0 < depth <= VALUES and 0 < values <= VALUES


def result_strides(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Of the result of these sizes."""
    _, heads, rows, values = sizes
    return (rows * heads * values, values, heads * values, 1)


def numbers(
    query: Sequence[Any],
    key: Sequence[Any],
    values: Any,
    strides: Sequence[Sequence[Any]],
    mask: Sequence[Any] | None,
    scale: float | None,
    causal: bool,
    empty: bool,
) -> list[Any]:
    """Of `run_attention` after its tensors. query, key: sizes; strides: of query, key, value and
    result; mask: its strides, as many as it has sizes when it is expanded."""
    batch, heads, rows, depth = query
    factor = 1 / math.sqrt(depth) if scale is None else scale
    bits = struct.unpack("<i", struct.pack("<f", factor))[0]
    apart = [stride for one in strides for stride in one[:3]]
    return [
        batch,
        heads,
        rows,
        key[2],
        depth,
        values,
        *apart,
        *(mask or (0, 0, 0, 0)),
        bits,
        int(causal),
        int(empty),
    ]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None = None,
    causal: bool = False,
    empty: bool = False,
) -> torch.Tensor:
    """``softmax(query @ key.mT * scale + mask) @ value``. scale: by default as
    scaled_dot_product_attention's.
    """
    sizes = (*query.shape[:3], value.shape[3])
    out = torch.empty_strided(sizes, result_strides(sizes))
    given = None if mask is None else mask.expand(*query.shape[:3], key.shape[2]).stride()
    tensors = [one if one.stride(3) == 1 else one.contiguous() for one in (query, key, value)]
    strides = [one.stride() for one in (*tensors, out)]
    native.function("run_attention")(
        *tensors, 0 if mask is None else mask, out,
        *numbers(query.shape, key.shape, value.shape[3], strides, given, scale, causal, empty),
    )  # fmt: skip
    return out
