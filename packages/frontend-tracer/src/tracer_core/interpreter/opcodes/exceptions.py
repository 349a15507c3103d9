"""raise, try, except, finally."""

from __future__ import annotations

from typing import Any

from tracer_core.interpreter.code import opcode
from tracer_core.interpreter.frame import Frame
from tracer_core.interpreter.machine import Machine


@opcode("PUSH_EXC_INFO")
def push_exc_info(m: Machine, f: Frame, arg: Any) -> None:
    error = f.stack.pop()
    f.stack.append(f.exceptions[-1] if f.exceptions else None)
    f.stack.append(error)
    f.exceptions.append(error)


@opcode("POP_EXCEPT")
def pop_except(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.pop()
    if f.exceptions:
        f.exceptions.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(m: Machine, f: Frame, arg: Any) -> None:
    kind = m.pop(f)
    error = m.peek(f)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for one in kinds:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    f.stack.append(isinstance(error, kinds))


@opcode("RAISE_VARARGS")
def raise_varargs(m: Machine, f: Frame, arg: int) -> None:
    if arg == 0:
        handled = m.handled()
        if handled is None:
            raise RuntimeError("No active exception to reraise")
        raise handled
    values = m.pop_n(f, arg)
    error = values[0]
    if isinstance(error, type):
        error = m.call_value(error, [], {})
    if not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if arg == 2:
        cause = values[1]
        error.__cause__ = m.call_value(cause, [], {}) if isinstance(cause, type) else cause
    raise error


@opcode("RERAISE")
def reraise(m: Machine, f: Frame, arg: int) -> None:
    # The offset below (lasti) is for tracebacks only: the handler is looked up from this instruction.
    raise f.stack.pop()
