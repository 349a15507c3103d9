"""Writes ops, constants and index expressions in Triton; `common.op_table` has the rows.

Math functions are libdevice's, the ones that eager's own CUDA kernels call; division and square
root round as IEEE 754 says.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_backend.codegen.common.op_syntax import Spelling, call
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.values import Value

#: Triton types of values in registers.
TL_TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.bool: "tl.int1",
}

#: Element types of pointers in a kernel's signature.
POINTER_TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.uint64: "*u64",
    torch.bool: "*i1",
}

_MEMORY_ONLY = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}


def pointer_type(dtype: torch.dtype) -> str:
    """Returns the pointer's element type. Raises BackendError for an unsupported dtype."""
    if dtype not in POINTER_TYPES:
        raise unsupported("codegen", f"Triton kernels on dtype {dtype} are not built")
    return POINTER_TYPES[dtype]


#: Constants from here to its reciprocal divide with the help of their own reciprocal.
LEAST_DIVISOR = 2.0**-100


def constant_source(value: Any, dtype: torch.dtype) -> str:
    """Returns the exact, typed literal of a constant: Triton gives a bare number the type of its
    neighbour, or float32."""
    if dtype == torch.bool:
        return f"tl.full([], {bool(value)}, tl.int1)"
    if not dtype.is_floating_point:
        number = int(value)
        if not dtype.is_signed:  # as a conversion wraps it
            number %= 2 ** (8 * dtype.itemsize)
        return f"tl.full([], {number}, {TL_TYPES[dtype]})"
    if value == 0 and math.copysign(1, value) < 0:  # tl.full makes 0.0 of it
        bits, low = ("tl.int32", -(2**31)) if dtype == torch.float32 else ("tl.int64", -(2**63))
        return f"tl.full([], {low}, {bits}).to({TL_TYPES[dtype]}, bitcast=True)"
    if math.isnan(value) or math.isinf(value):
        return f'tl.full([], float("{value}"), {TL_TYPES[dtype]})'
    return f"tl.full([], {float(value)!r}, {TL_TYPES[dtype]})"


def _is_float(value: Value) -> bool:
    return value.dtype.is_floating_point


def compare(sign: str) -> Spelling:
    def text(value: Value, a: str, b: str) -> str:
        if value.args[0].dtype == torch.bool:  # a signed bit is -1
            return f"{a}.to(tl.int8, bitcast=False) {sign} {b}.to(tl.int8, bitcast=False)"
        return f"{a} {sign} {b}"

    return text


def extreme(name: str) -> Spelling:
    def text(value: Value, a: str, b: str) -> str:
        if value.dtype == torch.bool:
            return f"{a} {'|' if name == 'maximum' else '&'} {b}"
        nan = ", propagate_nan=tl.PropagateNan.ALL" if _is_float(value) else ""
        return f"tl.{name}({a}, {b}{nan})"

    return text


def negative(value: Value, a: str) -> str:
    """Triton's -a is 0 - a, which has no -0.0."""
    return f"({a} * -1.0)" if _is_float(value) else f"-{a}"


def div(value: Value, a: str, b: str) -> str:
    if value.dtype != torch.float32:
        return f"{a} / {b}"
    number = value.args[1].attr[0] if value.args[1].name == "constant" else None
    if number is None or not LEAST_DIVISOR < abs(number) < 1 / LEAST_DIVISOR:
        return f"quotient({a}, {b})"
    divisor = torch.tensor(number, dtype=value.dtype, device="cpu")
    inverse = constant_source(divisor.reciprocal().item(), value.dtype)
    if math.frexp(number)[0] in (0.5, -0.5):  # a power of two: the product is exact
        return f"{a} * {inverse}"
    return f"quotient_by({a}, {b}, {inverse})"


def trunc_div(value: Value, a: str, b: str) -> str:
    return f"libdevice.trunc({div(value, a, b)})" if _is_float(value) else f"{a} // divisor({b})"


def libdevice(name: str) -> Spelling:
    return call(f"libdevice.{name}")


def cast(value: Value, a: str) -> str:
    source = value.args[0].dtype
    if value.dtype == torch.bool:
        return f"({a} != 0)"
    if source.is_floating_point and value.dtype in (torch.uint8, torch.int8, torch.int16):
        return f"{a}.to(tl.int64).to({TL_TYPES[value.dtype]})"
    return f"{a}.to({TL_TYPES[value.dtype]})"


def round_to(value: Value, a: str) -> str:
    return f"{a}.to({_MEMORY_ONLY[value.attr]}).to(tl.float32)"


def sqrt(value: Value, a: str) -> str:
    return f"tl.sqrt_rn({a})" if value.dtype == torch.float32 else f"libdevice.sqrt({a})"


def shift(sign: str) -> Spelling:
    """A shift count beyond the width shifts everything out, as in eager."""

    def text(value: Value, a: str, b: str) -> str:
        bits = value.dtype.itemsize * 8
        inside = f"({b} >= 0) & ({b} < {bits})"
        signed = sign == ">>" and value.dtype.is_signed
        out = f"{a} >> {bits - 1}" if signed else f"tl.zeros_like({a})"
        return f"tl.where({inside}, {a} {sign} tl.where({inside}, {b}, 0), {out})"

    return text


def bit_not(value: Value, a: str) -> str:
    return f"({a} == 0)" if value.dtype == torch.bool else f"~{a}"


def absolute(value: Value, a: str) -> str:
    return a if value.dtype in (torch.uint8, torch.bool) else f"tl.abs({a})"


def sign(value: Value, a: str) -> str:
    return f"(({a} > 0).to(tl.int8) - ({a} < 0).to(tl.int8)).to({TL_TYPES[value.dtype]})"


def isinf(value: Value, a: str) -> str:
    return f'(tl.abs({a}) == float("inf"))' if _is_float(value.args[0]) else f"({a} != {a})"
