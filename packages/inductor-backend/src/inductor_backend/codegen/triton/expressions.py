"""Triton text of ops, constants and index expressions.

In: `Value`s and `Index`es. Out: expression text. What always holds: `TRITON_OPS` covers `OPS`
(tested); math functions are libdevice's, the ones that eager's own CUDA kernels call, and division
and square root round as IEEE says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.values import Value

#: What a value is called in registers.
TL_TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}

#: Element types of pointers, as a kernel's signature names them.
POINTER_TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}

_MEMORY_ONLY = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}


def pointer_type(dtype: torch.dtype) -> str:
    """Raises BackendError for a dtype that kernels cannot touch."""
    if dtype not in POINTER_TYPES:
        raise unsupported("codegen", f"Triton kernels on dtype {dtype} are not built")
    return POINTER_TYPES[dtype]


def constant_text(value: Any, dtype: torch.dtype) -> str:
    """The literal of a constant, exact and typed: Triton gives a bare number the type of its
    neighbour, or float32.
    """
    if dtype == torch.bool:
        return f"tl.full([], {bool(value)}, tl.int1)"
    if not dtype.is_floating_point:
        return f"tl.full([], {int(value)}, {TL_TYPES[dtype]})"
    if math.isnan(value) or math.isinf(value):
        return f'tl.full([], float("{value}"), {TL_TYPES[dtype]})'
    return f"tl.full([], {float(value)!r}, {TL_TYPES[dtype]})"


def _is_float(value: Value) -> bool:
    return value.dtype.is_floating_point


def _infix(sign: str, logical: str = "") -> Callable[..., str]:
    """logical: the sign for bools."""
    return lambda value, a, b: (
        f"{a} {logical if logical and value.dtype == torch.bool else sign} {b}"
    )


def _compare(sign: str) -> Callable[..., str]:
    def text(value: Value, a: str, b: str) -> str:
        if value.args[0].dtype == torch.bool:  # a signed bit is -1
            return f"{a}.to(tl.int8, bitcast=False) {sign} {b}.to(tl.int8, bitcast=False)"
        return f"{a} {sign} {b}"

    return text


def _extreme(name: str) -> Callable[..., str]:
    def text(value: Value, a: str, b: str) -> str:
        if value.dtype == torch.bool:
            return f"{a} {'|' if name == 'maximum' else '&'} {b}"
        nan = ", propagate_nan=tl.PropagateNan.ALL" if _is_float(value) else ""
        return f"tl.{name}({a}, {b}{nan})"

    return text


def _div(value: Value, a: str, b: str) -> str:
    return f"tl.div_rn({a}, {b})" if value.dtype == torch.float32 else f"{a} / {b}"


def _by_kind(for_floats: str, for_ints: str) -> Callable[..., str]:
    return lambda value, *args: (for_floats if _is_float(value) else for_ints).format(*args)


def _math(name: str) -> Callable[..., str]:
    return lambda value, *args: f"libdevice.{name}({', '.join(args)})"


def _device(name: str) -> Callable[..., str]:
    return lambda value, *args: f"{name}({', '.join(args)})"


def _cast(value: Value, a: str) -> str:
    source = value.args[0].dtype
    if value.dtype == torch.bool:
        return f"({a} != 0)"
    if source.is_floating_point and value.dtype in (torch.uint8, torch.int8, torch.int16):
        return f"{a}.to(tl.int64).to({TL_TYPES[value.dtype]})"
    return f"{a}.to({TL_TYPES[value.dtype]})"


def _round_to(value: Value, a: str) -> str:
    return f"{a}.to({_MEMORY_ONLY[value.attr]}).to(tl.float32)"


def _sqrt(value: Value, a: str) -> str:
    return f"tl.sqrt_rn({a})" if value.dtype == torch.float32 else f"libdevice.sqrt({a})"


def _shift(sign: str) -> Callable[..., str]:
    """A count outside the width shifts everything out, as in eager."""

    def text(value: Value, a: str, b: str) -> str:
        bits = value.dtype.itemsize * 8
        inside = f"({b} >= 0) & ({b} < {bits})"
        signed = sign == ">>" and value.dtype.is_signed
        out = f"{a} >> {bits - 1}" if signed else f"tl.zeros_like({a})"
        return f"tl.where({inside}, {a} {sign} tl.where({inside}, {b}, 0), {out})"

    return text


def _bit_not(value: Value, a: str) -> str:
    return f"({a} == 0)" if value.dtype == torch.bool else f"~{a}"


#: op -> text of its result from (value, argument texts). load, index, ... need the kernel: see
#: kernel.py.
TRITON_OPS: dict[str, Callable[..., str]] = {
    "add": _infix("+", "|"),
    "sub": _infix("-", "^"),
    "mul": _infix("*", "&"),
    "div": _div,
    "maximum": _extreme("maximum"),
    "minimum": _extreme("minimum"),
    "bit_and": _infix("&"),
    "bit_or": _infix("|"),
    "bit_xor": _infix("^"),
    "bit_not": _bit_not,
    "shift_left": _shift("<<"),
    "shift_right": _shift(">>"),
    "trunc_div": _by_kind("libdevice.trunc({0} / {1})", "{0} // {1}"),
    "floor_div": _by_kind("float_floor_div({0}, {1})", "int_floor_div({0}, {1})"),
    "fmod": _by_kind("libdevice.fmod({0}, {1})", "{0} % {1}"),
    "mod": _by_kind("float_mod({0}, {1})", "int_mod({0}, {1})"),
    "pow": _by_kind("libdevice.pow({0}, {1})", "int_pow({0}, {1})"),
    "atan2": _math("atan2"),
    "eq": _compare("=="),
    "ne": _compare("!="),
    "lt": _compare("<"),
    "le": _compare("<="),
    "gt": _compare(">"),
    "ge": _compare(">="),
    "neg": lambda value, a: f"-{a}",
    "abs": lambda value, a: f"tl.abs({a})" if value.dtype not in (torch.uint8, torch.bool) else a,
    "relu": lambda value, a: f"relu({a})" if _is_float(value) else f"tl.maximum({a}, 0)",
    "sign": lambda value, a: (
        f"(({a} > 0).to(tl.int8) - ({a} < 0).to(tl.int8)).to({TL_TYPES[value.dtype]})"
    ),
    "floor": _by_kind("libdevice.floor({0})", "{0}"),
    "ceil": _by_kind("libdevice.ceil({0})", "{0}"),
    "trunc": _by_kind("libdevice.trunc({0})", "{0}"),
    "round": _by_kind("libdevice.rint({0})", "{0}"),
    "isnan": lambda value, a: f"({a} != {a})",
    "isinf": lambda value, a: (
        f'(tl.abs({a}) == float("inf"))'
        if value.args[0].dtype.is_floating_point
        else f"({a} != {a})"
    ),
    "where": lambda value, c, a, b: f"tl.where({c}, {a}, {b})",
    "cast": _cast,
    "round_to": _round_to,
    "sqrt": _sqrt,
    "sigmoid": _device("sigmoid"),
    "silu": _device("silu"),
    "gelu_erf": _device("gelu_erf"),
    "gelu_tanh": _device("gelu_tanh"),
    "softplus": _device("softplus"),
    "philox": _device("uniform"),
}
_LIBDEVICE = """
exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc
"""
TRITON_OPS.update({name: _math(name) for name in _LIBDEVICE.split()})

TRITON_OPS.update({name: _math(name) for name in ("copysign", "hypot", "nextafter", "erfinv")})

#: Ops whose text the kernel writer makes, since they touch buffers, loop variables or sizes.
KERNEL_OPS = frozenset({"load", "masked_load", "constant", "index", "check_index", "wrap_index"})

#: Every op that a Triton kernel may hold; an operator that needs another stays with ATen.
KNOWN_OPS = KERNEL_OPS | TRITON_OPS.keys()
