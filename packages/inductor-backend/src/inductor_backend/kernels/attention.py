"""Scaled dot-product attention by a hand-written CPU kernel, for few keys.

The kernel is kernels/cpu/attention.cpp. Takes float32 CPU tensors of shape (batch, head, row, value)
with dense rows. The result is laid out as (batch, row, head, value), like that of ATen's flash
kernel. `pays` says where this kernel is faster. A row that sees no key is NaN, as softmax gives, or 0 where `empty` says so, as
scaled_dot_product_attention gives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels import native

#: Most keys with which the kernel is the fastest, by the floats of a vector (measured: with AVX-512 a head's work must
#: fit into a core's cache; with AVX2 it is 1.1 times as fast as ATen's for 64 to 4,096 keys).
KEYS = {16: 512, 8: 4096, 4: 512}
#: Most values of a head.
VALUES = 128
#: Query rows whose scores are held at once: BLOCK_ROWS of the kernel.
BLOCK_ROWS = 48


def pays(keys: int, depth: int, values: int, heads: int) -> bool:
    """Returns whether the kernel is fastest for `heads` heads of `keys` keys of size `depth`, and
    values of size `values`."""
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
    factor = 1 / math.sqrt(depth) if scale is None else scale
    bits = struct.unpack("<i", struct.pack("<f", factor))[0]
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
