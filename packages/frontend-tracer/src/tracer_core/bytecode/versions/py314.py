"""CPython 3.14: borrowed references, ``LOAD_SPECIAL``, annotations as functions, template strings.

Borrowing is between CPython and its stack: `LOAD_FAST_BORROW` is `LOAD_FAST`.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Sequence
from dataclasses import replace

from tracer_core.bytecode.instructions import Instruction
from tracer_core.bytecode.versions import py313
from tracer_core.bytecode.versions.version import OpcodeStep, Rewrite, nothing

#: What LOAD_COMMON_CONSTANT pushes; empty before 3.14.
_COMMON: Sequence[object] = getattr(dis, "_common_constants", ())
#: The method that LOAD_SPECIAL looks up; empty before 3.14.
_SPECIAL: Sequence[str] = getattr(dis, "_special_method_names", ())
_SUBSCRIPT = next((at for at, (_, sign) in enumerate(dis._nb_ops) if sign == "[]"), -1)  # type: ignore[attr-defined]


def _as(name: str) -> Rewrite:
    """Returns the rewrite of an instruction that has the meaning of another one."""
    return lambda result, at, raw: (OpcodeStep(name, result[at].arg),)


def _constant(
    instructions: Sequence[Instruction], at: int, raw: types.CodeType
) -> tuple[OpcodeStep, ...]:
    return (OpcodeStep("LOAD_CONST", _COMMON[instructions[at].arg or 0]),)


def _special(result: Sequence[Instruction], at: int, raw: types.CodeType) -> tuple[OpcodeStep, ...]:
    return (OpcodeStep("LOAD_SPECIAL", _SPECIAL[result[at].arg or 0]),)


def _operator(
    instructions: Sequence[Instruction], at: int, raw: types.CodeType
) -> tuple[OpcodeStep, ...]:
    arg = instructions[at].arg
    return (
        OpcodeStep("BINARY_SUBSCR", None) if arg == _SUBSCRIPT else OpcodeStep("BINARY_OP", arg),
    )


VERSION = replace(
    py313.VERSION,
    rewrites={
        **py313.VERSION.rewrites,
        "LOAD_FAST_BORROW": _as("LOAD_FAST"), "LOAD_SMALL_INT": _as("LOAD_CONST"),
        "LOAD_FAST_BORROW_LOAD_FAST_BORROW": py313.pair("LOAD_FAST", "LOAD_FAST"),
        "LOAD_COMMON_CONSTANT": _constant, "LOAD_SPECIAL": _special, "BINARY_OP": _operator,
        "NOT_TAKEN": nothing, "POP_ITER": _as("POP_TOP"),
    },
    loop_end=("END_FOR", "POP_ITER"),
    counted=(list, tuple, dict),
    unsupported={
        **{name: why for name, why in py313.VERSION.unsupported.items()
           if name != "BEFORE_ASYNC_WITH"},
        "ANNOTATIONS_PLACEHOLDER": "only inside the compiler",
    },
)  # fmt: skip
