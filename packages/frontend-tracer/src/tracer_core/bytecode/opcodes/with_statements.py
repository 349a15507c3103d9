"""with statements."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine
from tracer_core.guards.value_kinds import instances_have

use_own_builtins(globals())


def _bound(m: Machine, manager: Any, name: str, missed: str, qualified: bool) -> Any:
    """Returns a manager's special method. missed: what the error of a manager without it adds.
    qualified: whether the error gives the whole name of the manager's class."""
    result = m.attributes.special(manager, name, NULL)
    if result is not NULL:
        return result
    kind = m.exceptions.type_name(manager, qualified)
    raise TypeError(f"'{kind}' object does not support the context manager protocol{missed}")


@opcode("BEFORE_WITH")
def before_with(m: Machine, f: Frame, arg: Any) -> None:
    manager = m.pop(f)
    enter = _bound(m, manager, "__enter__", "", False)
    leave = _bound(m, manager, "__exit__", " (missed __exit__ method)", False)
    f.stack.append(leave)
    m.calls.call(f, enter, [], {})


@opcode("LOAD_SPECIAL")
def load_special(m: Machine, f: Frame, arg: str) -> None:
    manager, missed = m.pop(f), f" (missed {arg} method)"
    if all(instances_have(type(manager), name) for name in ("__aenter__", "__aexit__")):
        missed += (" but it supports the asynchronous context manager protocol. Did you mean to use"
                   " 'async with'?")  # fmt: skip
    f.stack += [_bound(m, manager, arg, missed, True), NULL]


@opcode("WITH_EXCEPT_START")
def with_except_start(m: Machine, f: Frame, arg: Any) -> None:
    error = m.peek(f, 1)
    leave = m.peek(f, 4)
    if leave is NULL:  # of the call without ``self`` that LOAD_SPECIAL began
        leave = m.peek(f, 5)
    m.calls.call(f, leave, [type(error), error, m.attributes.getattr(error, "__traceback__")], {})
