"""Jumps."""

from __future__ import annotations

from typing import Any

from tracer_core.interpreter.code import opcode
from tracer_core.interpreter.frame import Frame
from tracer_core.interpreter.machine import Machine


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(m: Machine, f: Frame, arg: int) -> None:
    f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(m: Machine, f: Frame, arg: int) -> None:
    if m.truth(m.pop(f)):
        f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(m: Machine, f: Frame, arg: int) -> None:
    if not m.truth(m.pop(f)):
        f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(m: Machine, f: Frame, arg: int) -> None:
    if m.pop(f) is None:
        f.ip = arg


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m: Machine, f: Frame, arg: int) -> None:
    if m.pop(f) is not None:
        f.ip = arg


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(m: Machine, f: Frame, arg: int) -> None:
    if m.truth(m.peek(f)):
        f.ip = arg
    else:
        f.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(m: Machine, f: Frame, arg: int) -> None:
    if not m.truth(m.peek(f)):
        f.ip = arg
    else:
        f.stack.pop()


@opcode("GET_LEN")
def get_len(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(m.call_value(len, [m.peek(f)], {}))


@opcode("MATCH_MAPPING", "MATCH_SEQUENCE")
def match_kind(m: Machine, f: Frame, arg: Any) -> None:
    # Py_TPFLAGS_MAPPING is bit 6, Py_TPFLAGS_SEQUENCE bit 5 (object.h).
    bit = 6 if f.code.names[f.last] == "MATCH_MAPPING" else 5
    f.stack.append(bool(type(m.peek(f)).__flags__ & (1 << bit)))


@opcode("MATCH_KEYS")
def match_keys(m: Machine, f: Frame, arg: Any) -> None:
    subject, keys = m.peek(f, 2), m.peek(f, 1)
    if all(m.contains(key, subject) for key in keys):
        f.stack.append(tuple(m.getitem(subject, key) for key in keys))
    else:
        f.stack.append(None)


@opcode("MATCH_CLASS")
def match_class(m: Machine, f: Frame, arg: int) -> None:
    subject, cls, names = m.pop_n(f, 3)
    if not m.call_value(isinstance, [subject, cls], {}):
        f.stack.append(None)
        return
    try:
        f.stack.append(tuple(_class_parts(m, subject, cls, arg, names)))
    except AttributeError:
        f.stack.append(None)


def _class_parts(m: Machine, subject: Any, cls: Any, n_positional: int, names: tuple[str, ...]) -> Any:
    # Py_TPFLAGS_MATCH_SELF (bit 22): one positional pattern matches the subject itself.
    if n_positional == 1 and cls.__flags__ & (1 << 22):
        yield subject
    elif n_positional:
        accepted = m.getattr(cls, "__match_args__")
        if len(accepted) < n_positional:
            raise TypeError(
                f"{cls.__name__}() accepts {len(accepted)} positional sub-patterns ({n_positional} given)"
            )
        for name in accepted[:n_positional]:
            yield m.getattr(subject, name)
    for name in names:
        yield m.getattr(subject, name)
