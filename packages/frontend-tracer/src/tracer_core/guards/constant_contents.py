"""Which memory of a graph's constants is looked at in each call: some writes do not count up a
tensor's version.

In: constants on the CPU. Out: spans of their memory (address, bytes): all of a small buffer,
because batch norm writes its running statistics without saying so, and samples of everything else,
because fused optimizers do the same. What always holds: a span lies inside its tensor's memory,
which must be known to be where it was before the span is read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch

#: Buffers of at most so many bytes are compared as a whole.
MOST_BYTES = 16384

#: Places of a tensor that are compared, 8 bytes each: an optimizer's step changes (nearly) all
#: elements.
SAMPLES = 8


def spans_of(tensor: torch.Tensor, whole: bool) -> list[tuple[int, int]]:
    """The spans of one constant. whole: if it is small, everything."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return []
    reach = (
        sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        + 1
    )
    start, length = tensor.data_ptr(), reach * tensor.element_size()
    if length <= (MOST_BYTES if whole else 8 * SAMPLES):
        return [(start, length)]
    return [(start + (length - 8) * k // (SAMPLES - 1) // 8 * 8, 8) for k in range(SAMPLES)]


def contents_of(found: Sequence[tuple[int, int]]) -> list[bytes]:
    """What they hold now."""
    return [ctypes.string_at(address, length) for address, length in found]


def words_of(found: Sequence[tuple[int, int]]) -> Iterator[int]:
    """The addresses of the aligned words that the spans touch; a word may reach over a span's
    end.
    """
    for address, length in found:
        yield from range(address & ~7, address + length, 8)
