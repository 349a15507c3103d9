"""Maps every op of a loop body to its C++ and Triton text: a new op gets one row here (and its
meaning in `ir.ops`).

`CPP` and `TRITON` hold its columns. The table and `KERNEL_OPS` cover `OPS`
(tests/inductor/test_tables.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.codegen.common.op_syntax import Spelling, by_kind, call, infix
from inductor_backend.codegen.cpp import expressions as cpp
from inductor_backend.codegen.triton import expressions as triton


@dataclass(frozen=True, slots=True)
class Language:
    """What a language writes alike in every kernel."""

    #: Its column of the op table.
    ops: Mapping[str, Spelling]
    #: Returns the literal of a number of a dtype.
    constant: Callable[[Any, torch.dtype], str]
    #: Of an index {0} and a size {1}: the index, plus the size where it is negative.
    wrapped_index: str
    #: The operator for floor division of nonnegative integers.
    floor: str


@dataclass(frozen=True, slots=True)
class OpSource:
    """cpp, triton: functions from (value, argument texts) to the result's text; triton None: an
    operator that needs the op stays with ATen. vectors: the C++ text for floats also works for
    vectors of them (`cpp.vectors`). special: the C++ text calls a function of
    prelude_special.h."""

    cpp: Spelling
    triton: Spelling | None
    vectors: bool = False
    special: bool = False


def _table() -> dict[str, OpSource]:
    libdevice = triton.libdevice
    rows = {
        "add": OpSource(infix("+"), infix("+", "|"), True),
        "sub": OpSource(infix("-"), infix("-", "^"), True),
        "mul": OpSource(infix("*", "&&"), infix("*", "&"), True),
        "div": OpSource(infix("/"), triton.div, True),
        "fma": OpSource(call("tc_fma"), call("tl.fma"), True),
        "maximum": OpSource(call("tc_max"), triton.extreme("maximum"), True),
        "minimum": OpSource(call("tc_min"), triton.extreme("minimum"), True),
        "bit_and": OpSource(infix("&"), infix("&")),
        "bit_or": OpSource(infix("|"), infix("|")),
        "bit_xor": OpSource(infix("^"), infix("^")),
        "bit_not": OpSource(cpp.bit_not, triton.bit_not),
        "shift_left": OpSource(call("ts_shift_left"), triton.shift("<<"), special=True),
        "shift_right": OpSource(call("ts_shift_right"), triton.shift(">>"), special=True),
        "trunc_div": OpSource(call("tc_truncdiv"), triton.trunc_div, True),
        "floor_div": OpSource(
            call("tc_floordiv"),
            by_kind("float_floor_div({0}, {1})", "int_floor_div({0}, {1})"),
            True,
        ),
        "fmod": OpSource(
            call("tc_fmod"), by_kind("libdevice.fmod({0}, {1})", "{0} % divisor({1})"), True
        ),
        "mod": OpSource(call("tc_mod"), by_kind("float_mod({0}, {1})", "int_mod({0}, {1})"), True),
        "pow": OpSource(call("tc_pow"), by_kind("libdevice.pow({0}, {1})", "int_pow({0}, {1})")),
        "neg": OpSource(lambda value, a: f"-{a}", triton.negative, True),
        "abs": OpSource(call("tc_abs"), triton.absolute, True),
        "relu": OpSource(call("tc_relu"), by_kind("relu({0})", "tl.maximum({0}, 0)"), True),
        "sign": OpSource(call("tc_sign"), triton.sign),
        "round": OpSource(call("tc_round"), by_kind("libdevice.rint({0})", "{0}"), True),
        "isnan": OpSource(lambda value, a: f"{a} != {a}", lambda value, a: f"({a} != {a})", True),
        "isinf": OpSource(call("tc_isinf"), triton.isinf, True),
        "where": OpSource(lambda value, c, a, b: f"{c} ? {a} : {b}", call("tl.where"), True),
        "cast": OpSource(cpp.cast, triton.cast),
        "round_to": OpSource(cpp.round_to, triton.round_to),
        "sqrt": OpSource(call("tc_sqrt"), triton.sqrt, True),
        "erfinv": OpSource(call("ts_erfinv"), libdevice("erfinv"), special=True),
        "sigmoid_exp2": OpSource(lambda value, a: f"1 / (1 + tc_exp2({a}))", call("sigmoid_exp2")),
        "philox": OpSource(call("ts_philox"), call("uniform"), special=True),
    }
    for name, sign in {
        "eq": "==",
        "ne": "!=",
        "lt": "<",
        "le": "<=",
        "gt": ">",
        "ge": ">=",
    }.items():
        rows[name] = OpSource(infix(sign), triton.compare(sign), True)
    for name in ("floor", "ceil", "trunc"):
        rows[name] = OpSource(call(f"tc_{name}"), by_kind(f"libdevice.{name}({{0}})", "{0}"), True)
    for name in ("sigmoid", "silu", "gelu_erf", "gelu_tanh", "softplus"):
        rows[name] = OpSource(call(f"tc_{name}"), call(name), True)
    for name in ("rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf"):
        rows[name] = OpSource(call(f"tc_{name}"), libdevice(name), True)
    simple = "atan2 exp2 log2 log10 tan asin acos atan sinh cosh asinh acosh atanh erfc"
    for name in simple.split():
        rows[name] = OpSource(call(f"tc_{name}"), libdevice(name))
    for name in ("copysign", "hypot", "nextafter"):
        rows[name] = OpSource(call(f"ts_{name}"), libdevice(name), special=True)
    for name in ("gcd", "lcm", "digamma", "i0", "i0e", "i1", "i1e"):
        rows[name] = OpSource(call(f"ts_{name}"), None, special=True)
    return rows


OP_TABLE = _table()

CPP = Language(
    {name: row.cpp for name, row in OP_TABLE.items()},
    cpp.constant_source,
    "{0} < 0 ? {0} + {1} : {0}",
    "/",
)
TRITON = Language(
    {name: row.triton for name, row in OP_TABLE.items() if row.triton is not None},
    triton.constant_source,
    "tl.where({0} < 0, {0} + {1}, {0})",
    "//",
)

#: Ops whose C++ text needs prelude_special.h.
SPECIAL_OPS = frozenset(name for name, row in OP_TABLE.items() if row.special)

#: Ops that the kernel writer writes itself: they use buffers, loop variables or sizes.
KERNEL_OPS = frozenset({"load", "masked_load", "constant", "index", "check_index", "wrap_index"})

#: Every op that Triton kernels support; an operator that needs another stays with ATen.
KNOWN_OPS = KERNEL_OPS | TRITON.ops.keys()
