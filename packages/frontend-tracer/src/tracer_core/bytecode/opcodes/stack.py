"""Stack shuffling, constants and no-ops."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine, handlers

use_own_builtins(globals())

handlers({
    **dict.fromkeys(("NOP", "RESUME", "CACHE", "EXTENDED_ARG", "PRECALL"), lambda m, f, arg: None),
    "PUSH_NULL": lambda m, f, arg: f.stack.append(NULL),
    "COPY": lambda m, f, arg: f.stack.append(m.peek(f, arg)),
    "LOAD_CONST": lambda m, f, arg: f.stack.append(arg),
    "LOAD_ASSERTION_ERROR": lambda m, f, arg: f.stack.append(AssertionError),
    "RETURN_VALUE": lambda m, f, arg: (f.stack.pop(),),
    "RETURN_CONST": lambda m, f, arg: (arg,),
})  # fmt: skip


@opcode("POP_TOP")
def pop_top(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.pop()


@opcode("SWAP")
def swap(m: Machine, f: Frame, arg: int) -> None:
    f.stack[-1], f.stack[-arg] = f.stack[-arg], f.stack[-1]
