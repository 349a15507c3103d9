"""C++ text of ops and constants.

In: `Value`s. Out: expression text. What always holds: `CPP_OPS` covers `OPS` (tested); integer
arithmetic wraps (the toolchain passes -fwrapv) and is converted back to the value's own type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.values import Value

#: What a value is called in registers, and in memory.
C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}
MEMORY_TYPES = {**C_TYPES, torch.bfloat16: "tc_bf16", torch.float16: "tc_half"}

#: Rounding of a float to a 16-bit type in memory.
TO_MEMORY = {torch.bfloat16: "tc_to_bf16", torch.float16: "tc_to_half"}


def memory_type(dtype: torch.dtype) -> str:
    """Raises BackendError for a dtype that kernels cannot touch."""
    if dtype not in MEMORY_TYPES:
        raise unsupported("codegen", f"kernels on dtype {dtype} are not built")
    return MEMORY_TYPES[dtype]


def constant_text(value: Any, dtype: torch.dtype) -> str:
    """The literal of a constant, exact."""
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
            return constant_text(value, dtype)
    if value == int(value) and abs(value) < 1e6:
        return (
            f"{value:.1f}{suffix}"
            if math.copysign(1, value) > 0
            else f"(-{abs(value):.1f}{suffix})"
        )
    return f"({value.hex()}{suffix})"


def _call(name: str) -> Callable[..., str]:
    return lambda value, *args: f"{name}({', '.join(args)})"


def _infix(sign: str) -> Callable[..., str]:
    return lambda value, a, b: f"{a} {sign} {b}"


def _bitwise_not(value: Value, a: str) -> str:
    return f"!{a}" if value.dtype == torch.bool else f"~{a}"


def _cast(value: Value, a: str) -> str:
    source = value.args[0].dtype
    if value.dtype == torch.bool:
        return f"({a} != 0)"
    if source.is_floating_point and value.dtype in (torch.uint8, torch.int8, torch.int16):
        return f"({C_TYPES[value.dtype]})(int64_t){a}"
    return f"({C_TYPES[value.dtype]}){a}"


def _round_to(value: Value, a: str) -> str:
    return f"tc_to_float({TO_MEMORY[value.attr]}({a}))"


def _mul(value: Value, a: str, b: str) -> str:
    return f"{a} && {b}" if value.dtype == torch.bool else f"{a} * {b}"


def _relu(value: Value, a: str) -> str:
    return f"tc_relu({a})"


#: op -> text of its result from (value, argument texts). load, index, ... need the kernel: see
#: kernel.py.
CPP_OPS: dict[str, Callable[..., str]] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _mul,
    "div": _infix("/"),
    "maximum": _call("tc_max"),
    "minimum": _call("tc_min"),
    "bit_and": _infix("&"),
    "bit_or": _infix("|"),
    "bit_xor": _infix("^"),
    "bit_not": _bitwise_not,
    "shift_left": _call("ts_shift_left"),
    "shift_right": _call("ts_shift_right"),
    "trunc_div": _call("tc_truncdiv"),
    "floor_div": _call("tc_floordiv"),
    "fmod": _call("tc_fmod"),
    "mod": _call("tc_mod"),
    "pow": _call("tc_pow"),
    "atan2": _call("tc_atan2"),
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
    "neg": lambda value, a: f"-{a}",
    "abs": _call("tc_abs"),
    "relu": _relu,
    "sign": _call("tc_sign"),
    "floor": _call("tc_floor"),
    "ceil": _call("tc_ceil"),
    "trunc": _call("tc_trunc"),
    "round": _call("tc_round"),
    "isnan": lambda value, a: f"{a} != {a}",
    "isinf": _call("tc_isinf"),
    "where": lambda value, c, a, b: f"{c} ? {a} : {b}",
    "cast": _cast,
    "round_to": _round_to,
}
#: Ops that are one call of the prelude's function of that name.
_CALLS = """
exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh
erf erfc sigmoid silu gelu_erf gelu_tanh softplus
"""
CPP_OPS.update({name: _call("tc_" + name) for name in str(_CALLS).split()})
#: The same, of prelude_special.h.
_SPECIAL_CALLS = "copysign hypot nextafter gcd lcm erfinv digamma i0 i0e i1 i1e philox"
CPP_OPS.update({name: _call("ts_" + name) for name in _SPECIAL_CALLS.split()})

#: Ops whose text the kernel writer makes, since they touch buffers, loop variables or sizes.
KERNEL_OPS = frozenset({"load", "masked_load", "constant", "index", "check_index", "wrap_index"})
#: Of whole numbers, they report a divisor of zero.
DIVISIONS = frozenset({"trunc_div", "floor_div", "fmod", "mod"})


def may_fail(value: Value) -> bool:
    """Whether computing a value may report an error (``tc_fail``)."""
    return value.name == "check_index" or (
        value.name in DIVISIONS and not value.dtype.is_floating_point
    )
