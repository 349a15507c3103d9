"""Patterns of ``match`` statements."""

from __future__ import annotations

import sys
from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine

use_own_builtins(globals())

#: Py_TPFLAGS_MATCH_SELF: one positional pattern matches the subject itself.
_MATCH_SELF = 1 << 22


@opcode("GET_LEN")
def get_len(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(m.calls.call_value(len, [m.peek(f)], {}))


@opcode("MATCH_MAPPING", "MATCH_SEQUENCE")
def match_kind(m: Machine, f: Frame, arg: Any) -> None:
    # Py_TPFLAGS_MAPPING is bit 6, Py_TPFLAGS_SEQUENCE bit 5 (object.h).
    bit = 6 if f.code.names[f.last] == "MATCH_MAPPING" else 5
    f.stack.append(bool(type(m.peek(f)).__flags__ & (1 << bit)))


@opcode("MATCH_KEYS")
def match_keys(m: Machine, f: Frame, arg: Any) -> None:
    subject, keys = m.peek(f, 2), m.peek(f, 1)
    get = m.attributes.getattr(subject, "get") if keys else None
    result: list[Any] = []
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        result.append(m.calls.call_value(get, [key, NULL], {}))
        if result[-1] is NULL:
            f.stack.append(None)
            return
    f.stack.append(tuple(result))


@opcode("MATCH_CLASS")
def match_class(m: Machine, f: Frame, arg: int) -> None:
    subject, cls, names = m.pop_n(f, 3)
    if not isinstance(cls, type):
        raise TypeError(
            f"called match pattern must be a {'class' if sys.version_info >= (3, 12) else 'type'}"
        )
    if not m.calls.call_value(isinstance, [subject, cls], {}):
        f.stack.append(None)
        return
    fields = m.attributes.getattr_or(cls, "__match_args__", NULL) if arg else ()
    itself = arg == 1 and bool(cls.__flags__ & _MATCH_SELF) and fields is NULL
    wanted = [*([] if itself else _positional(m, cls, arg, fields)), *names]
    matched: list[Any] = [subject] if itself else []
    for i, name in enumerate(wanted):
        if name in wanted[:i]:
            raise TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}")
        try:
            matched.append(m.attributes.getattr(subject, name))
        except AttributeError:
            f.stack.append(None)
            return
    f.stack.append(tuple(matched))


def _positional(m: Machine, cls: type, count: int, fields: Any) -> tuple[str, ...]:
    """Returns the names of the attributes that `count` positional patterns match. fields: the
    class's ``__match_args__``, or NULL."""
    accepted: Any = () if fields is NULL else fields
    if not isinstance(accepted, tuple):
        raise TypeError(
            f"{cls.__name__}.__match_args__ must be a tuple (got"
            f" {m.exceptions.type_name(accepted)})"
        )
    if len(accepted) < count:
        allowed = 1 if fields is NULL and cls.__flags__ & _MATCH_SELF else len(accepted)
        plural = "" if allowed == 1 else "s"
        raise TypeError(
            f"{cls.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)"
        )
    for name in accepted[:count]:
        if not isinstance(name, str):
            raise TypeError(
                f"__match_args__ elements must be strings (got {m.exceptions.type_name(name)})"
            )
    return accepted[:count]
