"""Chooses the memory of a graph's constants that every call compares, because some writes do not
bump a tensor's version.

Small buffers on the CPU are compared as a whole, because batch norm writes its running statistics
without a version bump; everything else is sampled, because fused optimizers write parameters that
way. A span lies inside its tensor's memory; check that the memory has not moved before reading a
span.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch

from tracer_core.debug.crossed_limits import crossed
from tracer_core.limits import MAX_COMPARED_BYTES

#: Number of samples per tensor, 8 bytes each: an optimizer's step changes (nearly) all elements.
SAMPLES = 8


def spans_of(tensor: torch.Tensor, every_byte: bool) -> list[tuple[int, int]]:
    """Returns the spans of one constant. every_byte: of a small one."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return []
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in steps) + 1
    start, length = tensor.data_ptr(), reach * tensor.element_size()
    if length <= (MAX_COMPARED_BYTES if every_byte else 8 * SAMPLES):
        return [(start, length)]
    if every_byte:
        crossed("MAX_COMPARED_BYTES", reached=length)
    return [(start + (length - 8) * k // (SAMPLES - 1) // 8 * 8, 8) for k in range(SAMPLES)]


def contents_of(numbers: Sequence[tuple[int, int]]) -> list[bytes]:
    """Returns the present contents of the spans."""
    return [ctypes.string_at(address, length) for address, length in numbers]


def fields_of(numbers: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Returns the addresses of the aligned words that the spans touch; a word may extend past a
    span's end.
    """
    for address, length in numbers:
        yield from range(address & ~7, address + length, 8)
