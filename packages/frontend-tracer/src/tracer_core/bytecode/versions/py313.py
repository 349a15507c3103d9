"""CPython 3.13: super-instructions, ``TO_BOOL``, ``CALL_KW`` and attributes of functions one by one.

`LOAD_FAST_LOAD_FAST` and the like become the two instructions that they stand for. A truth value
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
    Rewrite,
    Step,
    Version,
    compared,
    name_and_flag,
    nothing,
    super_attribute,
)

#: The instructions that ask for the truth of the value on top of the stack.
_ASKS_TRUTH = frozenset({"POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"})
#: The flag of COMPARE_OP's argument: its result is converted to bool.
_TO_BOOL = 16


def pair(first: str, second: str) -> Rewrite:
    """Returns the rewrite of a super-instruction on two variables."""

    def rewrite(found: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[Step, ...]:
        arg = found[at].arg or 0
        return Step(first, arg >> 4), Step(second, arg & 15)

    return rewrite


def leaves_truth(found: Sequence[Instruction], at: int) -> bool:
    """Returns whether the next instruction asks for the truth value that one is to compute."""
    asks = found[at].name == "TO_BOOL" or (
        found[at].name == "COMPARE_OP" and bool((found[at].arg or 0) & _TO_BOOL)
    )
    return asks and at + 1 < len(found) and found[at + 1].name in _ASKS_TRUTH


def _to_bool(found: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[Step, ...]:
    return NOTHING if leaves_truth(found, at) else (Step("TO_BOOL", None),)


def _compare(found: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[Step, ...]:
    arg = found[at].arg or 0
    steps = (Step("COMPARE_OP", _COMPARED(arg, raw)),)
    return steps + _to_bool(found, at, raw) if arg & _TO_BOOL else steps


def _constant(found: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[Step, ...]:
    value = raw.co_consts[found[at].arg or 0]
    names_keywords = at + 1 < len(found) and found[at + 1].name == "CALL_KW"
    return (Step("KW_NAMES" if names_keywords else "LOAD_CONST", value),)


def call(found: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[Step, ...]:
    return (Step("CALL", found[at].arg),)


def _make_function(found: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[Step, ...]:
    flags = 0
    while (at := at + 1) < len(found) and found[at].name == "SET_FUNCTION_ATTRIBUTE":
        flags |= found[at].arg or 0
    return (Step("MAKE_FUNCTION", flags),)


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
    leaves_truth=leaves_truth,
)  # fmt: skip
