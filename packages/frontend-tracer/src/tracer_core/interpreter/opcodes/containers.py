"""Container displays, unpacking, slices and f-strings."""

from __future__ import annotations

from typing import Any

from tracer_core.interpreter.code import opcode
from tracer_core.interpreter.frame import Frame
from tracer_core.interpreter.machine import Machine


@opcode("BUILD_TUPLE")
def build_tuple(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(m.made(tuple(m.pop_n(f, arg))))


@opcode("BUILD_LIST")
def build_list(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(m.made(m.pop_n(f, arg)))


@opcode("BUILD_SET")
def build_set(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop_n(f, arg)
    f.stack.append(m.made(m.call_value(set, [items], {})))


@opcode("BUILD_MAP")
def build_map(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop_n(f, 2 * arg)
    made: dict[Any, Any] = m.made({})
    for key, value in zip(items[::2], items[1::2], strict=True):
        m.setitem(made, key, value)
    f.stack.append(made)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(m: Machine, f: Frame, arg: int) -> None:
    keys = m.pop(f)
    f.stack.append(m.made(dict(zip(keys, m.pop_n(f, arg), strict=True))))


@opcode("BUILD_STRING")
def build_string(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append("".join(m.pop_n(f, arg)))


@opcode("BUILD_SLICE")
def build_slice(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(slice(*m.pop_n(f, arg)))


@opcode("FORMAT_VALUE")
def format_value(m: Machine, f: Frame, arg: Any) -> None:
    flags = arg[0] if isinstance(arg, tuple) else arg
    spec = m.pop(f) if (arg[1] if isinstance(arg, tuple) else arg & 4) else ""
    value = m.pop(f)
    convert = {0: None, 1: str, 2: repr, 3: ascii}[flags & 3] if isinstance(flags, int) else flags
    if convert is not None:
        value = m.call_value(convert, [value], {})
    f.stack.append(m.format(value, spec))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(m.made(tuple(m.pop(f))))


@opcode("LIST_APPEND")
def list_append(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    m.list_append(m.peek(f, arg), value)


@opcode("SET_ADD")
def set_add(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    m.call_value(set.add, [m.peek(f, arg), value], {})


@opcode("MAP_ADD")
def map_add(m: Machine, f: Frame, arg: int) -> None:
    key, value = m.pop_n(f, 2)
    m.setitem(m.peek(f, arg), key, value)


@opcode("LIST_EXTEND")
def list_extend(m: Machine, f: Frame, arg: int) -> None:
    items = m.spread(m.pop(f))
    m.list_extend(m.peek(f, arg), items)


@opcode("SET_UPDATE")
def set_update(m: Machine, f: Frame, arg: int) -> None:
    items = m.spread(m.pop(f))
    m.call_value(set.update, [m.peek(f, arg), items], {})


@opcode("DICT_UPDATE")
def dict_update(m: Machine, f: Frame, arg: int) -> None:
    items = m.mapping(m.pop(f))
    m.dict_update(m.peek(f, arg), items)


@opcode("DICT_MERGE")
def dict_merge(m: Machine, f: Frame, arg: int) -> None:
    items = m.mapping(m.pop(f))
    target = m.peek(f, arg)
    for key, value in items.items():
        if key in target:
            raise TypeError(f"got multiple values for keyword argument {key!r}")
    m.dict_update(target, items)


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    items = m.spread(value)
    if len(items) < arg:
        raise ValueError(f"not enough values to unpack (expected {arg}, got {len(items)})")
    if len(items) > arg:
        raise ValueError(f"too many values to unpack (expected {arg})")
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(m: Machine, f: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = m.spread(m.pop(f))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = m.made(items[before : len(items) - after])
    tail = items[len(items) - after :] if after else []
    f.stack.extend(reversed([*items[:before], middle, *tail]))


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    if arg == 5:
        f.stack.append(m.unary("+", value))
    elif arg == 6:
        f.stack.append(m.made(tuple(value)))
    elif arg == 3:
        # A StopIteration that leaves a generator becomes a RuntimeError (PEP 479).
        f.stack.append(_stop_iteration(value))
    else:
        m.break_graph("unsupported_opcode", f"CALL_INTRINSIC_1 {arg}")


def _stop_iteration(error: BaseException) -> BaseException:
    if isinstance(error, StopIteration):
        replacement = RuntimeError("generator raised StopIteration")
        replacement.__cause__ = error
        return replacement
    return error


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(m: Machine, f: Frame, arg: int) -> None:
    m.break_graph("unsupported_opcode", f"CALL_INTRINSIC_2 {arg}: except* and type parameters")
