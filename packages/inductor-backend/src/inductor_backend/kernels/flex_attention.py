"""Which calls of flex_attention have Triton kernels, and with which blocks.

A block of rows lies within one block of the BlockMask, and so does a block of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.limits import MAX_HEAD_WIDTH

#: Dtypes of queries, keys and values.
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
#: More keys than any tile has.
_MANY = 1 << 30
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


#: (bytes of an element, widest head, tiles), of which the first that fits is taken.
_Table = tuple[tuple[int, int, Tiles], ...]
#: With them the forward takes
#: 0.70 to 0.92 of the time of torch.compile's on an H100 (4,096 positions of 64 numbers).
_FORWARD: _Table = (
    (2, 64, Tiles(128, 64, 4, 3)),
    (2, 128, Tiles(128, 64, 8, 3)),
    (2, 256, Tiles(64, 32, 4, 2)),
    (4, 64, Tiles(64, 32, 4, 2)),
    (4, 128, Tiles(32, 32, 4, 2)),
    (4, 256, Tiles(16, 32, 4, 2)),
)
#: Of the query's gradient, and of those of key and value, whose programs walk over queries. Each fits
#: into the shared memory of an A100.
_QUERIES: _Table = (
    (2, 64, Tiles(64, 64, 4, 3)),
    (2, 128, Tiles(64, 64, 8, 2)),
    (2, 256, Tiles(32, 32, 4, 2)),
    (4, 64, Tiles(32, 32, 4, 2)),
    (4, 128, Tiles(32, 32, 4, 1)),
    (4, 256, Tiles(16, 16, 4, 1)),
)
#: A wide block of keys takes 0.83 of the time of a square one where four heads share keys, and 0.98
#: where none do (H100, 32,768 positions of 64 numbers).
_KEYS: _Table = ((2, 64, Tiles(32, 128, 4, 3)), *_QUERIES[1:])

#: Programs that a GPU should have (an H100 has 132 processors, each of which takes several), and the
#: fewest tiles of keys for which a walk is worth a program.
_PROGRAMS, _MIN_TILES = 512, 4
#: The most programs that share a walk.
_MAX_SPLITS = 64

#: Options of a call (`kernel_options`) that choose the tiles: rows, columns, warps and stages.
_OPTIONS = {
    "forward": ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"),
    "queries": ("BLOCK_M2", "BLOCK_N2", "num_warps", "num_stages"),
    "keys": ("BLOCK_M1", "BLOCK_N1", "num_warps", "num_stages"),
}


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
    return _tiles(_FORWARD, "forward", dtype, width, (rows, _MANY), block_size, options)


def forward_splits(programs: int, columns: int, tiles: Tiles) -> int:
    """Returns how many programs share a walk over keys: a power of two, 1 where there are blocks of
    rows enough. programs: blocks of rows of all heads. columns: keys in the captured call."""
    most = min(_PROGRAMS // max(programs, 1), columns // (_MIN_TILES * tiles.columns))
    return 1 << (min(most, _MAX_SPLITS).bit_length() - 1) if most > 1 else 1


def backward_tiles(
    dtype: torch.dtype,
    width: int,
    lengths: tuple[int, int],
    block_size: tuple[int, int],
    options: Mapping[str, Any],
) -> tuple[Tiles, Tiles] | None:
    """Returns the tiles of the kernel of the query's gradient, and of that of the key's and value's;
    see `forward_tiles`. lengths: queries and keys in the captured call."""
    queries = _tiles(_QUERIES, "queries", dtype, width, lengths, block_size, options)
    keys = _tiles(_KEYS, "keys", dtype, width, lengths, block_size, options)
    return None if queries is None or keys is None else (queries, keys)


def _tiles(
    table: _Table,
    kernel: str,
    dtype: torch.dtype,
    width: int,
    lengths: tuple[int, int],
    block_size: tuple[int, int],
    options: Mapping[str, Any],
) -> Tiles | None:
    result = next(
        tiles for itemsize, widest, tiles in table if itemsize == dtype.itemsize and width <= widest
    )
    names = _OPTIONS[kernel]
    prefix = "fwd" if kernel == "forward" else "bwd"
    inputs = [
        _given(options, prefix, name, default)
        for name, default in zip(
            names, (result.rows, result.columns, result.warps, result.stages), strict=True
        )
    ]
    rows, columns = (
        _fitting(min(wanted, _enough(length)), block)
        for wanted, length, block in zip(inputs, lengths, block_size, strict=False)
    )
    if min(rows, columns) < SMALLEST:
        return None
    warps = min(inputs[2], 4) if rows * columns < 64 * 64 else inputs[2]
    return Tiles(rows, columns, warps, inputs[3])


def _enough(length: int) -> int:
    """Returns the smallest tile that holds so many positions."""
    return max(SMALLEST, 1 << (max(length, 1) - 1).bit_length())


def _given(options: Mapping[str, Any], prefix: str, name: str, default: int) -> int:
    value = options.get(f"{prefix}_{name}", options.get(name))
    if type(value) is not int or value <= 0:
        return default
    return value if name == "num_stages" or value & (value - 1) == 0 else default


def _fitting(wanted: int, block: int) -> int:
    """Returns the largest power of two, at most `wanted`, that divides a block."""
    while wanted > 1 and block % wanted:
        wanted //= 2
    return wanted


def why_no_forward(query: Any, key: Any, value: Any, buffers: Any, flex: Any) -> str | None:
    """Returns why a call has no forward kernel in Triton, or None; see `why_not_in_cpp`."""
    widest = max(query.shape[3], value.shape[3])
    reason = why_not_in_cpp(query, key, value, buffers, flex)
    if reason is None and not _has_forward_tiles(query.dtype, widest, flex):
        return f"blocks of {flex.block_size}"
    return reason


def _has_forward_tiles(dtype: torch.dtype, width: int, flex: Any) -> bool:
    return forward_tiles(dtype, width, 128, flex.block_size, flex.options) is not None


def why_not_in_cpp(query: Any, key: Any, value: Any, buffers: Any, flex: Any) -> str | None:
    """Returns why a call has no forward kernel in C++, or None. query, key, value, buffers: (fake)
    tensors."""
    if query.dtype not in DTYPES or {query.dtype, key.dtype, value.dtype} != {query.dtype}:
        return f"{query.dtype}, {key.dtype} and {value.dtype}"
    widths = [tensor.shape[3] for tensor in (query, value)]
    if not all(isinstance(size, int) for size in (*widths, query.shape[1], key.shape[1])):
        return "heads of a symbolic size"
    if max(widths) > MAX_HEAD_WIDTH:
        return f"heads wider than {MAX_HEAD_WIDTH}"
    if 0 in (*query.shape[:3], *key.shape[:3], *widths):
        return "empty tensors"
    if any(buffer.dtype.is_complex or buffer.dtype.itemsize > 8 for buffer in buffers):
        return "a captured tensor of an unsupported dtype"
    return None


def why_no_backward_in_cpp(query: Any, key: Any, value: Any, buffers: Any, flex: Any) -> str | None:
    """Returns why a call has no C++ backward kernel, or None; see `why_not_in_cpp`."""
    if flex.score is not None and flex.gradient is None:
        return "scores that depend on no tensor with a gradient"
    if flex.differentiated:
        return "gradients of captured tensors"
    if key.shape[0] != value.shape[0]:
        return "keys and values of different batches"
    return why_not_in_cpp(query, key, value, buffers, flex)


def rows_of_task(most: int, width: int, block: int) -> int:
    """Returns how many rows a C++ kernel holds in a thread's cache: at most `most`, within one block
    of the BlockMask."""
    most = most if width <= 128 else most // 2
    return next(rows for rows in range(most, 0, -1) if block % rows == 0)


def why_no_backward(query: Any, key: Any, value: Any, buffers: Any, flex: Any) -> str | None:
    """Returns why a call has no backward kernels, or None; see `why_no_forward`."""
    reason = why_no_forward(query, key, value, buffers, flex)
    if reason is not None:
        return reason
    if flex.score is not None and flex.gradient is None:
        return "scores that depend on no tensor with a gradient"
    if key.shape[0] != value.shape[0]:
        return "keys and values of different batches"
    if flex.differentiated and torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms, which sums by atomic additions are not"
    widest, none = max(query.shape[3], value.shape[3]), (128, 128)
    if backward_tiles(query.dtype, widest, none, flex.block_size, flex.options) is None:
        return f"blocks of {flex.block_size}"
    return None
