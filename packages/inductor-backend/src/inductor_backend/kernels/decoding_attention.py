"""Attention of few queries over many keys on GPUs: which calls have a kernel, and its blocks.

The time of such a call is that of reading keys and values once. The queries of all heads that share
them are rows of one program, and several programs share the keys of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inductor_backend.kernels.flex_attention import padded

#: Programs that a GPU should have (an H200 has 132 processors), and the most that share a head's keys.
PROGRAMS, MAX_SPLITS = 132, 64
#: Elements that the last program of a head reads of the others' parts at most.
PARTS_READ = 32768
#: Keys of a call whose number is a symbol: a text is captured when it is short.
SYMBOLIC_KEYS = 4096
#: Elements in registers of the program that combines the parts of others.
COMBINED = 8192


@dataclass(frozen=True, slots=True)
class DecodingAttention:
    """The target of an extern node: ``softmax(query @ key.mT * scale + mask) @ value`` for query, key,
    value and mask (or None), where key and value have a divisor of the query's heads. A row that sees
    no key is 0.

    hidden: what a boolean mask adds to the scores of hidden keys. causal: query k sees keys 0 to k."""

    scale: float
    hidden: float
    causal: bool

    def __str__(self) -> str:
        return "decoding_attention"


@dataclass(frozen=True, slots=True)
class Tiles:
    """rows, columns: of a block of scores, queries (of all heads that share keys) and keys. splits:
    programs that share the keys of a head. warps: of a program. stages: of software pipelining."""

    rows: int
    columns: int
    splits: int
    warps: int
    stages: int


#: (bytes of an element, widest head, most rows of a block, keys of a block, warps, stages). The first
#: that holds a call's rows is taken, else one with most rows. Three stages take at most 99 KiB of
#: shared memory, which every GPU since Ampere has. On an H200 they read 1.0 (2,048 keys) to 3.2 TB/s
#: (16 texts), 1.3 times what 64 keys in two stages read.
_BLOCKS = (
    (2, 64, 16, 128, 4, 3),
    (2, 128, 16, 64, 4, 3),
    (2, 64, 64, 64, 4, 3),
    (2, 128, 64, 64, 4, 2),
    (2, 256, 32, 32, 4, 2),
    (4, 128, 16, 32, 4, 2),
    (4, 256, 16, 16, 4, 2),
)


def decoding_tiles(
    dtype: torch.dtype, width: int, rows: int, heads: int, keys: int | None
) -> Tiles:
    """Returns the tiles of a call. width: of the wider head. rows: queries that share keys. heads: of
    keys, in all batches. keys: None where they are a symbol."""
    fitting = [
        rest
        for itemsize, widest, *rest in _BLOCKS
        if itemsize == dtype.itemsize and width <= widest
    ]
    most_rows, columns, warps, stages = next(
        (block for block in fitting if padded(rows) <= block[0]),
        max(fitting, key=lambda block: block[0]),
    )
    if keys is not None:
        columns = min(columns, padded(keys))
    block = min(most_rows, padded(rows))
    programs = heads * -(-rows // block)
    most = min(
        PROGRAMS // max(programs, 1),
        (keys or SYMBOLIC_KEYS) // columns,
        PARTS_READ // (min(rows, block) * width),
        MAX_SPLITS,
    )
    splits = 1 << (max(most, 1).bit_length() - 1)
    return Tiles(block, columns, splits, warps, stages)
