"""Which operands give an operator a result that PyTorch defines.

A rule is a predicate over an operator's operands; the generator asks it before eager runs the
operator, for the values of every call. What no rule forbids is judged. What each forbids, and why:

=================  ===============================================================================
`castable`         float to integer: NaN, infinities and numbers that the type cannot hold (C++
                   leaves them undefined, and eager's vector and scalar kernels differ)
`divisible`        integer division of the smallest number by -1 (the processor traps), and by 0
                   (eager raises, which `raising` programs try)
`summable`         sums and products whose finite operands may overflow: the order of the additions
                   decides between a number, an infinity and NaN
`writable`         a write to a tensor whose elements share memory, or that shares part of its
                   memory with another operand (torch documents it as undefined)
`apart`            a write to a part of a tensor that shares memory with what is written
`finite`           complex arithmetic on infinities and NaN: which part becomes NaN is not defined
                   by C++, and eager's vector and scalar kernels differ
=================  ===============================================================================

By their texts (`forms`): where several equal elements are extremes, sorted or counted, the operator
is stable, documents the first one, or its indices are not read; writes through indices hit an
element once, or add; nothing reads memory that nobody wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

Rule = Callable[[Sequence[torch.Tensor]], bool]


def castable(low: float, high: float) -> Rule:
    """Whether all numbers of the operands are in a range, away from its ends."""

    def rule(operands: Sequence[torch.Tensor]) -> bool:
        return all(
            not x.is_floating_point() or bool((x.isfinite() & (x > low + 1) & (x < high - 1)).all())
            for x in operands
        )

    return rule


def castable_to_the_first(operands: Sequence[torch.Tensor]) -> bool:
    target, *others = operands
    if target.is_floating_point() or target.is_complex() or target.dtype is torch.bool:
        return True
    info = torch.iinfo(target.dtype)
    return castable(info.min, info.max)([x.real if x.is_complex() else x for x in others])


def divisible(operands: Sequence[torch.Tensor]) -> bool:
    if any(x.is_floating_point() or x.is_complex() or x.dtype is torch.bool for x in operands):
        return True
    smallest = any(
        x.dtype.is_signed and bool((x == torch.iinfo(x.dtype).min).any()) for x in operands
    )
    return not smallest


def _extent(x: torch.Tensor) -> tuple[float, float]:
    """The largest finite number, and the largest of the type."""
    if not (x.is_floating_point() or x.is_complex()):
        return (float(x.double().abs().max()) if x.numel() else 0.0), math.inf
    size = x.detach().to(torch.complex128 if x.is_complex() else torch.float64).abs()
    size = torch.where(size.isfinite(), size, 0.0)
    return (float(size.max()) if size.numel() else 0.0), torch.finfo(x.dtype).max


def summable(operands: Sequence[torch.Tensor]) -> bool:
    """Whether no sum of products of two of these elements overflows."""
    parts = [_extent(x) for x in operands]
    largest = max((size for size, _ in parts), default=0.0)
    most = min((most for _, most in parts), default=math.inf)
    count = sum(x.numel() for x in operands) + 1
    largest = max(largest, 1.0)
    return largest * largest * count < most / 8


def multipliable(operands: Sequence[torch.Tensor]) -> bool:
    """Whether no product of all these elements overflows or vanishes, in any order."""
    for x in operands:
        if x.is_floating_point() or x.is_complex():
            size = x.detach().abs().double()
            logs = size[size.isfinite() & (size != 0)].log2().abs()
            if float(logs.sum()) > 0.8 * math.log2(torch.finfo(x.dtype).max):
                return False
    return True


def finite(operands: Sequence[torch.Tensor]) -> bool:
    return all(not x.is_complex() or bool(x.isfinite().all()) for x in operands)


def signed(operands: Sequence[torch.Tensor]) -> bool:
    return not any(bool(x.isnan().any()) for x in operands)


def without_infinity(operands: Sequence[torch.Tensor]) -> bool:
    return not any(bool(x.isinf().any()) for x in operands)


def _places(x: torch.Tensor) -> list[int]:
    """The addresses of the elements."""
    base, size = x.untyped_storage().data_ptr(), x.element_size()
    actual = [base + x.storage_offset() * size]
    for count, step in zip(x.shape, x.stride(), strict=True):
        actual = [place + k * step * size for place in actual for k in range(count)]
    return actual


def writable(operands: Sequence[torch.Tensor]) -> bool:
    target, *others = operands
    places = _places(target)
    mine = set(places)
    if len(mine) != len(places):
        return False
    home = target.untyped_storage().data_ptr()
    for other in others:
        if other is target or other.untyped_storage().data_ptr() != home:
            continue
        theirs = _places(other)
        if mine & set(theirs) and places != theirs:
            return False
    return True


def apart(operands: Sequence[torch.Tensor]) -> bool:
    """Whether the first operand may be written to in part: nothing else lies in its memory."""
    target, *others = operands
    home = target.untyped_storage().data_ptr()
    return writable([target]) and all(x.untyped_storage().data_ptr() != home for x in others)
