"""Writes ops and constants as C++ expressions; `common.op_table` has the rows.

Integer arithmetic wraps (the toolchain passes -fwrapv) and is converted back to the value's own
type.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.values import Value

#: C types of values in registers, and in memory.
C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    torch.bool: "bool",
}
MEMORY_TYPES = {
    **C_TYPES, torch.bfloat16: "tc_bf16", torch.float16: "tc_half",
    torch.float8_e4m3fn: "tc_e4m3", torch.float8_e5m2: "tc_e5m2",
}  # fmt: skip

#: Rounding of a float to a 16-bit type in memory.
TO_MEMORY = {torch.bfloat16: "tc_to_bf16", torch.float16: "tc_to_half"}


def memory_type(dtype: torch.dtype) -> str:
    """Returns the C type of an element in memory. Raises BackendError for an unsupported dtype."""
    if dtype not in MEMORY_TYPES:
        raise unsupported("codegen", f"kernels on dtype {dtype} are not built")
    return MEMORY_TYPES[dtype]


def constant_source(value: Any, dtype: torch.dtype) -> str:
    """Returns the exact literal of a constant."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        if value == -(2**63):
            return "std::numeric_limits<int64_t>::min()"
        return f"({C_TYPES[dtype]}){value}"
    name = C_TYPES[dtype]
    if math.isnan(value):
        return f"std::numeric_limits<{name}>::quiet_NaN()"
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}std::numeric_limits<{name}>::infinity())"
    suffix = "f" if dtype == torch.float32 else ""
    if dtype == torch.float32:
        value = torch.tensor(value, dtype=torch.float32).item()
        if math.isinf(value):
            return constant_source(value, dtype)
    if value == int(value) and abs(value) < 1e6:
        return (
            f"{value:.1f}{suffix}"
            if math.copysign(1, value) > 0
            else f"(-{abs(value):.1f}{suffix})"
        )
    return f"({value.hex()}{suffix})"


def bit_not(value: Value, a: str) -> str:
    return f"!{a}" if value.dtype == torch.bool else f"~{a}"


def cast(value: Value, a: str) -> str:
    source = value.args[0].dtype
    if value.dtype == torch.bool:
        return f"({a} != 0)"
    if source.is_floating_point and value.dtype in (torch.uint8, torch.int8, torch.int16):
        return f"({C_TYPES[value.dtype]})(int64_t){a}"
    text = f"({C_TYPES[value.dtype]}){a}"
    rounded = value.dtype.is_floating_point and _truncates(value.args[0])
    return f"tc_whole({text})" if rounded else text


def _truncates(value: Value) -> bool:
    """Whether an integer was made from a float."""
    if value.dtype.is_floating_point or value.dtype == torch.bool:
        return False
    result = value.name == "cast" and value.args[0].dtype.is_floating_point
    return result or any(map(_truncates, value.args))


def round_to(value: Value, a: str) -> str:
    return f"tc_to_float({TO_MEMORY[value.attr]}({a}))"
