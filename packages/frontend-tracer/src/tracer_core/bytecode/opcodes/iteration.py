"""for loops and generators."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine, handlers

use_own_builtins(globals())

handlers({
    "GET_ITER": lambda m, f, arg: f.stack.append(m.containers.loop(m.pop(f))),
    "GET_YIELD_FROM_ITER": lambda m, f, arg: f.stack.append(m.containers.iterate(m.pop(f))),
    # For the following POP_TOP; the call made the generator object.
    "RETURN_GENERATOR": lambda m, f, arg: f.stack.append(None),
})  # fmt: skip


@opcode("FOR_ITER")
def for_iter(m: Machine, f: Frame, arg: int) -> None:
    more, item = m.containers.advance(m.peek(f))
    if more:
        f.stack.append(item)
        return
    f.stack.pop()
    f.ip = arg


@opcode("YIELD_VALUE")
def yield_value(m: Machine, f: Frame, arg: Any) -> Any:
    # The frame suspends; the driver (trace/generators.py) pushes the sent value.
    f.generator.yielded = True
    return (m.pop(f),)


@opcode("SEND")
def send(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    receiver = m.peek(f)
    if value is None:
        more, item = m.containers.advance(receiver)
    else:
        more = True
        try:
            item = m.calls.call_value(m.attributes.getattr(receiver, "send"), [value], {})
        except StopIteration as stop:
            more, item = False, stop.value
    if more:
        f.stack.append(item)
        return
    if f.code.names[arg] == "END_SEND":
        f.stack.append(item)
    else:
        f.stack[-1] = item
    f.ip = arg


@opcode("END_SEND")
def end_send(m: Machine, f: Frame, arg: Any) -> None:
    del f.stack[-2]


@opcode("CLEANUP_THROW")
def cleanup_throw(m: Machine, f: Frame, arg: Any) -> None:
    # For an exception thrown in at ``yield from``: a StopIteration carries the expression's value.
    error = f.stack[-1]
    if not isinstance(error, StopIteration):
        raise error
    del f.stack[-3:]
    f.stack += [None, error.value]
