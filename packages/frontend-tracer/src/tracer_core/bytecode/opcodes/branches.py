"""Jumps."""

from __future__ import annotations

from tracer_core.bytecode.code import JUMPS, opcode
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine

use_own_builtins(globals())


@opcode(*JUMPS)
def jump(m: Machine, f: Frame, arg: int) -> None:
    f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(m: Machine, f: Frame, arg: int) -> None:
    if m.operators.to_bool(m.pop(f)):
        f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(m: Machine, f: Frame, arg: int) -> None:
    if not m.operators.to_bool(m.pop(f)):
        f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(m: Machine, f: Frame, arg: int) -> None:
    if m.called(f.stack.pop()) is None:
        f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m: Machine, f: Frame, arg: int) -> None:
    if m.called(f.stack.pop()) is not None:
        f.ip = arg


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(m: Machine, f: Frame, arg: int) -> None:
    if m.operators.to_bool(m.peek(f)):
        f.ip = arg
    else:
        f.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(m: Machine, f: Frame, arg: int) -> None:
    if not m.operators.to_bool(m.peek(f)):
        f.ip = arg
    else:
        f.stack.pop()
