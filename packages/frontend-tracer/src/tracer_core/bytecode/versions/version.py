"""The type of a release's table, and rewrites that several releases share."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracer_core.bytecode.instructions import Instruction


class OpcodeStep(NamedTuple):
    """An instruction as decoded: its opcode and its argument's meaning."""

    name: str
    arg: Any


#: (instructions, index, code object) -> the steps that stand for the instruction at the index.
Rewrite = Callable[[Sequence[Instruction], int, types.CodeType], tuple[OpcodeStep, ...]]


@dataclass(frozen=True, slots=True)
class Version:
    """The bytecode of a CPython release.

    arguments: opcode -> function that returns the meaning of its argument, where that packs flags
    with an index. rewrites: opcode -> the steps that stand for it. null_last: whether a callable
    lies below the NULL of a call without ``self``. loop_end: the opcodes at the target of FOR_ITER
    that pop what it has popped already.
    unsupported: opcode -> why it has no handler. unsupported_intrinsics: opcode -> argument -> why
    its handler has no meaning for that argument. counted: the types whose length the error of
    UNPACK_SEQUENCE gives if there are too many items. leaves_bool: whether the instruction after
    the one at an index asks for a bool in its place, and raises what that raises.
    """

    arguments: Mapping[str, Callable[[int, types.CodeType], Any]]
    rewrites: Mapping[str, Rewrite]
    null_last: bool
    loop_end: tuple[str, ...]
    unsupported: Mapping[str, str]
    unsupported_intrinsics: Mapping[str, Mapping[int, str]]
    counted: tuple[type, ...] = ()
    leaves_bool: Callable[[Sequence[Instruction], int], bool] = lambda result, at: False


def nothing(result: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[OpcodeStep, ...]:
    """Rewrites an instruction whose effect another one has."""
    return NOTHING


NOTHING = (OpcodeStep("NOP", None),)
ASYNC = "async functions are called eagerly"

AT_PROMPT = "only emitted by the interactive prompt"
IN_MODULE = "only legal at module level, which is never traced"
_LAZY = "CPython evaluates it when it is asked for, not where it is written"

#: Opcodes without a handler in every release.
UNSUPPORTED = dict.fromkeys(("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "END_ASYNC_FOR"), ASYNC)
#: Opcodes without a handler since 3.12.
UNSUPPORTED_SINCE_312 = {
    **UNSUPPORTED,
    "INTERPRETER_EXIT": "never in a code object's own bytecode",
    "RESERVED": "not an instruction",
    "INSTRUMENTED_LINE": "added at run time by tools; decoded as the original",
}
#: Arguments of intrinsics without a meaning since 3.12.
UNSUPPORTED_INTRINSICS: Mapping[str, Mapping[int, str]] = {
    "CALL_INTRINSIC_1": {1: AT_PROMPT, 2: IN_MODULE, 4: ASYNC, 11: _LAZY},
    "CALL_INTRINSIC_2": {2: _LAZY, 3: _LAZY},
}
#: Those since 3.13, with defaults of type parameters.
UNSUPPORTED_INTRINSICS_SINCE_313 = {
    **UNSUPPORTED_INTRINSICS,
    "CALL_INTRINSIC_2": {**UNSUPPORTED_INTRINSICS["CALL_INTRINSIC_2"], 5: _LAZY},
}


def name_and_flag(arg: int, raw: types.CodeType) -> tuple[str, bool]:
    """Returns a name and the lowest bit of its index."""
    return raw.co_names[arg >> 1], bool(arg & 1)


def compared(shift: int) -> Callable[[int, types.CodeType], str]:
    """Returns what decodes COMPARE_OP, whose operator's number begins at a bit."""
    return lambda arg, raw: dis.cmp_op[arg >> shift]


def super_attribute(arg: int, raw: types.CodeType) -> tuple[str, bool, bool]:
    """Returns what LOAD_SUPER_ATTR names, whether it is called, and whether super has arguments."""
    return raw.co_names[arg >> 2], bool(arg & 1), bool(arg & 2)
