"""Scaled dot-product attention by hand-written CPU kernels: for few queries, and for few keys.

The kernels are kernels/cpu/decoding_attention.cpp and kernels/cpu/attention.cpp. Both take float32
CPU tensors of shape (batch, head, row, value) with dense rows; the former also keys and values of 16
bits, and fewer heads of them than of queries. The result is laid out as (batch, row, head, value),
like that of ATen's flash kernel. `pays` says where they are faster. A row that sees no key is NaN,
as softmax gives, or 0 where `empty` says so, as scaled_dot_product_attention gives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels import native
from inductor_backend.limits import MAX_DECODED_QUERIES, MAX_HEAD_WIDTH

#: Most keys with which the kernel is the fastest, by the floats of a vector (measured: with AVX-512 a head's work must
#: fit into a core's cache; with AVX2 it is 1.1 times as fast as ATen's for 64 to 4,096 keys).
KEYS = {16: 512, 8: 4096, 4: 512}
#: Most values of a head.
VALUES = 128
#: Query rows whose scores are held at once: BLOCK_ROWS of the kernel.
BLOCK_ROWS = 48


#: dtype of keys and values -> launcher of attention of few queries.
DECODING = {
    torch.float32: "run_decoding_attention_float",
    torch.bfloat16: "run_decoding_attention_bf16",
    torch.float16: "run_decoding_attention_half",
}
#: Keys for each query with which reading keys as they lie is faster than transposing them first.
KEYS_PER_QUERY = 8


def reads_once(queries: int, keys: int, depth: int, values: int) -> bool:
    """Returns whether the kernel for few queries takes so many, which share keys."""
    return (
        native.lanes() > 4
        and 0 < queries <= MAX_DECODED_QUERIES
        and keys >= KEYS_PER_QUERY * queries
        and min(depth, values) > 0
        and max(depth, values) <= MAX_HEAD_WIDTH
    )


def decodes(queries: int, shared: int, keys: int, depth: int, values: int) -> bool:
    """Returns whether the kernel for few queries is the fastest. shared: heads of queries for each of
    keys. Several queries of one head multiply transposed keys faster, as long as those fit into
    the cache."""
    several = queries == 1 or shared > 1 or keys > KEYS[native.lanes()]
    return several and reads_once(queries, keys, depth, values)


def pays(queries: int, keys: int, depth: int, values: int, heads: int) -> bool:
    """Returns whether one of the kernels is fastest for `heads` heads of `queries` queries and `keys`
    keys of size `depth`, and values of size `values`."""
    if reads_once(queries, keys, depth, values):
        return True
    if not (keys > 0 and 0 < depth <= VALUES and 0 < values <= VALUES):
        return False
    if keys <= KEYS[native.lanes()]:
        return True
    # ATen cuts long queries into blocks of 256: few heads leave many threads unequal work.
    held = 4 * keys * (depth + values + BLOCK_ROWS)
    return heads < 2 * torch.get_num_threads() and 4 * held <= 3 * native.cache_bytes()


def result_strides(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the strides of a result of these sizes."""
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
    """Returns the scalar arguments of `run_attention`, which follow its tensors. query, key: sizes.
    strides: of query, key, value and result. mask: its strides, as many as it has sizes when
    expanded."""
    batch, heads, rows, depth = query
    apart = [stride for of_tensor in strides for stride in of_tensor[:3]]
    return [
        batch,
        heads,
        rows,
        key[2],
        depth,
        values,
        *apart,
        *(mask or (0, 0, 0, 0)),
        _bits(1 / math.sqrt(depth) if scale is None else scale),
        int(causal),
        int(empty),
    ]


def decoding_numbers(
    query: Sequence[Any],
    key: Sequence[Any],
    values: Any,
    strides: Sequence[Sequence[Any]],
    mask: tuple[torch.dtype, Sequence[Any]] | None,
    scale: float,
    hidden: float,
    causal: bool,
    empty: bool,
) -> list[Any]:
    """Returns the scalar arguments of a launcher of `DECODING`, which follow its tensors. As `numbers`;
    mask: its dtype, bool or float32, and strides. hidden: what a bool mask adds where it is False."""
    batch, heads, queries, depth = query
    kind = 0 if mask is None else 1 if mask[0] is torch.bool else 2
    apart = [stride for of_tensor in strides for stride in of_tensor[:3]]
    of_mask = (0, 0, 0, 0) if mask is None else mask[1]
    sizes = [kind, batch, heads, key[1], queries, key[2], depth, values]
    return [*sizes, *apart, *of_mask, _bits(scale), _bits(hidden), int(causal), int(empty)]


def _bits(number: float) -> int:
    """Returns the bits of a float32."""
    result: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return result


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None = None,
    causal: bool = False,
    empty: bool = False,
) -> torch.Tensor:
    """Computes ``softmax(query @ key.mT * scale + mask) @ value``. scale: by default that of
    scaled_dot_product_attention."""
    sizes = (*query.shape[:3], value.shape[3])
    out = torch.empty_strided(sizes, result_strides(sizes))
    inputs = None if mask is None else mask.expand(*query.shape[:3], key.shape[2]).stride()
    tensors = [x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value)]
    strides = [tensor.stride() for tensor in (*tensors, out)]
    native.function("run_attention")(
        *tensors, 0 if mask is None else mask, out,
        *numbers(query.shape, key.shape, value.shape[3], strides, inputs, scale, causal, empty),
    )  # fmt: skip
    return out


def decoding_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    hidden: float = -math.inf,
    causal: bool = False,
    empty: bool = True,
) -> torch.Tensor:
    """Computes `attention` of a float32 query and a mask of bools or float32; keys and values have a
    divisor of its heads."""
    sizes = (*query.shape[:3], value.shape[3])
    out = torch.empty_strided(sizes, result_strides(sizes))
    expanded = None
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
        expanded = (mask.dtype, mask.stride())
    tensors = [x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value)]
    strides = [tensor.stride() for tensor in (*tensors, out)]
    native.function(DECODING[key.dtype])(
        *tensors, 0 if mask is None else mask, out,
        *decoding_numbers(
            query.shape, key.shape, value.shape[3], strides, expanded, scale, hidden, causal, empty
        ),
    )  # fmt: skip
    return out
