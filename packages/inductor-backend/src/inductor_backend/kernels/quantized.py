"""The forms of matmuls of few rows whose weights are integers of 8 or 4 bits (`kernels/cpu/few_rows.cpp`)."""

from __future__ import annotations

import struct

import torch

#: Dtypes of the input and of the result, by their names in the kernels.
ELEMENTS = {torch.float32: "float", torch.bfloat16: "bf16", torch.float16: "half"}

#: Dtypes of weights.
INTEGERS = {torch.int8: "int8", torch.uint8: "uint8"}

#: Dtypes of the scales and zeros of groups, by their numbers in the kernel.
NUMBERS = {
    torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.uint8: 4,
    torch.int32: 5, torch.int64: 6,
}  # fmt: skip

#: In place of a dtype's number: one number for all groups.
ONE_NUMBER = 7

#: The weights of a step of the kernel's loops: those of a group are a multiple, or a whole row.
GROUP_STEP = 32


#: Order of two integers of 4 bits in a byte: that of the low bits first, or that of the high bits.
LOW_FIRST, HIGH_FIRST = 1, 2

#: Dtype and order of the weights that have forms of their own.
FORMS = ((torch.int8, 0), (torch.uint8, 0), (torch.uint8, LOW_FIRST))


def form(element: torch.dtype, integer: torch.dtype, nibbles: int = 0) -> str:
    """Returns the name of a form, which is the launcher's without "run_"."""
    return f"few_rows_{ELEMENTS[element]}_{'nibbles' if nibbles else INTEGERS[integer]}"


def unpacked(integers: torch.Tensor, nibbles: int) -> torch.Tensor:
    """Returns integers of 4 bits [N, K], of which [N, K / 2] has two a byte."""
    parts = [integers & 15, integers >> 4]
    return torch.stack(parts if nibbles == LOW_FIRST else parts[::-1], -1).flatten(-2)


def bits_of(number: float) -> int:
    """Returns a float as the integer that has its 64 bits, as the kernel takes it."""
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def quantized_mm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    factor: torch.Tensor | None,
    scale: torch.Tensor | float | None,
    zero: torch.Tensor | float | None,
    group: int,
    at_once: bool,
    nibbles: int = 0,
) -> torch.Tensor:
    """Computes ``x @ ((weight - zero) * scale) * factor + bias`` with x [M, K] and integers [K, N].

    Args:
        bias, factor: One for each column.
        scale, zero: [N, K / group], or one number.
        group: The terms of a group; 0 without scale and zero.
        at_once: Whether sums are not rounded before they are multiplied by the factor.
        nibbles: The order of integers of 4 bits, two a byte of a weight [K / 2, N]; or 0.
    """
    integers = unpacked(weight.t(), nibbles) if nibbles else weight.t()
    wide = integers.to(torch.float32)
    for number, combine in ((zero, torch.sub), (scale, torch.mul)):
        if isinstance(number, torch.Tensor):
            number = number.to(torch.float32).repeat_interleave(group, 1)
        wide = wide if number is None else combine(wide, number)
    result = x.to(torch.float32) @ wide.t()
    for number, combine in ((factor, torch.mul), (bias, torch.add)):
        if number is not None:
            once = at_once or (combine is torch.add and factor is None)
            result = result if once else result.to(x.dtype).to(torch.float32)
            result = combine(result, number.to(torch.float32))
    return result.to(x.dtype)
