"""with statements."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine

use_own_builtins(globals())


def _bound(m: Machine, manager: Any, name: str) -> Any:
    found = m.attributes.special(manager, name, None)
    if found is not None:
        return found
    missed = " (missed __exit__ method)" if name == "__exit__" else ""
    raise TypeError(
        f"'{m.exceptions.type_name(manager)}' object does not support the context manager"
        f" protocol{missed}"
    )


@opcode("BEFORE_WITH")
def before_with(m: Machine, f: Frame, arg: Any) -> None:
    manager = m.pop(f)
    enter = _bound(m, manager, "__enter__")
    leave = _bound(m, manager, "__exit__")
    f.stack.append(leave)
    m.calls.call(f, enter, [], {})


@opcode("LOAD_SPECIAL")
def load_special(m: Machine, f: Frame, arg: str) -> None:
    f.stack += [_bound(m, m.pop(f), arg), NULL]


@opcode("WITH_EXCEPT_START")
def with_except_start(m: Machine, f: Frame, arg: Any) -> None:
    error = m.peek(f, 1)
    leave = m.peek(f, 4)
    if leave is NULL:  # of the call without ``self`` that LOAD_SPECIAL began
        leave = m.peek(f, 5)
    m.calls.call(f, leave, [type(error), error, m.attributes.getattr(error, "__traceback__")], {})
