"""Stack shuffling, constants and no-ops."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.interpreter import Machine


@opcode("NOP", "RESUME", "CACHE", "RETURN_GENERATOR_DONE", "EXTENDED_ARG")
def nop(m: Machine, f: Frame, arg: Any) -> None:
    pass


@opcode("PRECALL")
def precall(m: Machine, f: Frame, arg: int) -> None:
    pass


@opcode("POP_TOP", "END_FOR_ONE")
def pop_top(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.pop()


@opcode("PUSH_NULL")
def push_null(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(NULL)


@opcode("COPY")
def copy(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(m.peek(f, arg))


@opcode("SWAP")
def swap(m: Machine, f: Frame, arg: int) -> None:
    f.stack[-1], f.stack[-arg] = f.stack[-arg], f.stack[-1]


@opcode("LOAD_CONST")
def load_const(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(arg)


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(AssertionError)


@opcode("RETURN_VALUE")
def return_value(m: Machine, f: Frame, arg: Any) -> tuple[Any]:
    return (f.stack.pop(),)


@opcode("RETURN_CONST")
def return_const(m: Machine, f: Frame, arg: Any) -> tuple[Any]:
    return (arg,)
