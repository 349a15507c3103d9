"""CPython 3.13: super-instructions, ``TO_BOOL``, ``CALL_KW`` and attributes of functions one by one.

`LOAD_FAST_LOAD_FAST` and the like become the two instructions that they stand for. A bool
that a jump or ``not`` reads is left to those, as they ask for it themselves. The names of a call's
keywords become `KW_NAMES`. `MAKE_FUNCTION` takes its attributes with it, because the closure of a
function cannot be set later.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence

from tracer_core.bytecode.instructions import Instruction
from tracer_core.bytecode.versions.version import (
    ASYNC,
    NOTHING,
    UNSUPPORTED_INTRINSICS_SINCE_313,
    UNSUPPORTED_SINCE_312,
    OpcodeStep,
    Rewrite,
    Version,
    compared,
    name_and_flag,
    nothing,
    super_attribute,
)

#: The instructions that ask for the truth of the value on top of the stack.
_QUERIES_BOOL = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"})
#: The flag of COMPARE_OP's argument: its result is converted to bool.
_TO_BOOL = 16


def pair(first: str, second: str) -> Rewrite:
    """Returns the rewrite of a super-instruction on two variables."""

    def rewrite(
        instructions: Sequence[Instruction], at: int, raw: types.CodeType
    ) -> tuple[OpcodeStep, ...]:
        arg = instructions[at].arg or 0
        return OpcodeStep(first, arg >> 4), OpcodeStep(second, arg & 15)

    return rewrite


def leaves_bool(instructions: Sequence[Instruction], at: int) -> bool:
    """Returns whether the next instruction asks for the bool that one is to compute."""
    asks = instructions[at].name == "TO_BOOL" or (
        instructions[at].name == "COMPARE_OP" and bool((instructions[at].arg or 0) & _TO_BOOL)
    )
    return asks and at + 1 < len(instructions) and instructions[at + 1].name in _QUERIES_BOOL


def _to_bool(result: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[OpcodeStep, ...]:
    return NOTHING if leaves_bool(result, at) else (OpcodeStep("TO_BOOL", None),)


def _compare(result: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[OpcodeStep, ...]:
    arg = result[at].arg or 0
    steps = (OpcodeStep("COMPARE_OP", _COMPARED(arg, raw)),)
    return steps + _to_bool(result, at, raw) if arg & _TO_BOOL else steps


def _constant(
    instructions: Sequence[Instruction], at: int, raw: types.CodeType
) -> tuple[OpcodeStep, ...]:
    value = raw.co_consts[instructions[at].arg or 0]
    names_keywords = at + 1 < len(instructions) and instructions[at + 1].name == "CALL_KW"
    return (OpcodeStep("KW_NAMES" if names_keywords else "LOAD_CONST", value),)


def call(result: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[OpcodeStep, ...]:
    return (OpcodeStep("CALL", result[at].arg),)


def _make_function(
    instructions: Sequence[Instruction], at: int, raw: types.CodeType
) -> tuple[OpcodeStep, ...]:
    flags = 0
    while (at := at + 1) < len(instructions) and instructions[at].name == "SET_FUNCTION_ATTRIBUTE":
        flags |= instructions[at].arg or 0
    return (OpcodeStep("MAKE_FUNCTION", flags),)


_COMPARED: Callable[[int, types.CodeType], str] = compared(5)

VERSION = Version(
    arguments={
        "LOAD_ATTR": name_and_flag, "LOAD_GLOBAL": name_and_flag,
        "LOAD_SUPER_ATTR": super_attribute,
    },
    rewrites={
        "LOAD_FAST_LOAD_FAST": pair("LOAD_FAST", "LOAD_FAST"),
        "STORE_FAST_LOAD_FAST": pair("STORE_FAST", "LOAD_FAST"),
        "STORE_FAST_STORE_FAST": pair("STORE_FAST", "STORE_FAST"),
        "TO_BOOL": _to_bool, "COMPARE_OP": _compare, "LOAD_CONST": _constant, "CALL_KW": call,
        "MAKE_FUNCTION": _make_function, "SET_FUNCTION_ATTRIBUTE": nothing, "END_FOR": nothing,
    },
    null_last=True,
    loop_end=("END_FOR", "POP_TOP"),
    unsupported={
        **UNSUPPORTED_SINCE_312, "BEFORE_ASYNC_WITH": ASYNC,
        "EXIT_INIT_CHECK": "only in frames that CPython makes itself",
        "ENTER_EXECUTOR": "added at run time; decoded as the original",
    },
    unsupported_intrinsics=UNSUPPORTED_INTRINSICS_SINCE_313,
    leaves_bool=leaves_bool,
)  # fmt: skip
