"""Container displays, unpacking, slices and f-strings."""

from __future__ import annotations

from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import Frame
from tracer_core.bytecode.interpreter import Machine
from tracer_core.bytecode.opcodes.exceptions import reraise_star
from tracer_core.bytecode.type_parameters import subscript_generic, type_parameter


@opcode("BUILD_TUPLE")
def build_tuple(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(m.names.made(tuple(m.pop_n(f, arg))))


@opcode("BUILD_LIST")
def build_list(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(m.names.made(m.pop_n(f, arg)))


@opcode("BUILD_SET")
def build_set(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop_n(f, arg)
    f.stack.append(m.names.made(m.calls.call_value(set, [items], {})))


@opcode("BUILD_MAP")
def build_map(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop_n(f, 2 * arg)
    made: dict[Any, Any] = m.names.made({})
    for key, value in zip(items[::2], items[1::2], strict=True):
        m.containers.setitem(made, key, value)
    f.stack.append(made)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(m: Machine, f: Frame, arg: int) -> None:
    keys = m.pop(f)
    f.stack.append(m.names.made(dict(zip(keys, m.pop_n(f, arg), strict=True))))


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
        value = m.calls.call_value(convert, [value], {})
    f.stack.append(m.containers.format(value, spec))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(m: Machine, f: Frame, arg: Any) -> None:
    f.stack.append(m.names.made(tuple(m.pop(f))))


@opcode("LIST_APPEND")
def list_append(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    m.containers.list_append(m.peek(f, arg), value)


@opcode("SET_ADD")
def set_add(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    m.calls.call_value(set.add, [m.peek(f, arg), value], {})


@opcode("MAP_ADD")
def map_add(m: Machine, f: Frame, arg: int) -> None:
    key, value = m.pop_n(f, 2)
    m.containers.setitem(m.peek(f, arg), key, value)


@opcode("LIST_EXTEND")
def list_extend(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    if not _may_iterate(value):
        raise TypeError(f"Value after * must be an iterable, not {m.exceptions.type_name(value)}")
    items = m.containers.spread(value, varies=True)
    m.containers.list_extend(m.peek(f, arg), items)


@opcode("SET_UPDATE")
def set_update(m: Machine, f: Frame, arg: int) -> None:
    items = m.containers.spread(m.pop(f))
    m.calls.call_value(set.update, [m.peek(f, arg), items], {})


@opcode("DICT_UPDATE")
def dict_update(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    if not _is_mapping(value):
        raise TypeError(f"'{m.exceptions.type_name(value)}' object is not a mapping")
    items = m.containers.mapping(value)
    m.containers.dict_update(m.peek(f, arg), items)


@opcode("DICT_MERGE")
def dict_merge(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    target, function = m.peek(f, arg), m.peek(f, arg + 2)
    if not _is_mapping(value):
        kind = m.exceptions.type_name(value)
        raise TypeError(
            f"{function_text(function)} argument after ** must be a mapping, not {kind}"
        )
    items = m.containers.mapping(value)
    for key in items:
        if type(key) is not str and not isinstance(key, str):
            raise TypeError("keywords must be strings")
        if key in target:
            raise TypeError(
                f"{function_text(function)} got multiple values for keyword argument '{key}'"
            )
    m.containers.dict_update(target, items)


def _may_iterate(value: Any) -> bool:
    return hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) or hasattr(type(value), "keys")


def function_text(function: Any) -> str:
    """Returns a function's name as CPython's errors about its arguments give it."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if name is None:
        return str(function)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    if not _may_iterate(value):
        raise TypeError(f"cannot unpack non-iterable {m.exceptions.type_name(value)} object")
    items = m.containers.spread(value, varies=True)
    if len(items) < arg:
        raise ValueError(f"not enough values to unpack (expected {arg}, got {len(items)})")
    if len(items) > arg:
        raise ValueError(f"too many values to unpack (expected {arg})")
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(m: Machine, f: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    value = m.pop(f)
    if not _may_iterate(value):
        raise TypeError(f"cannot unpack non-iterable {m.exceptions.type_name(value)} object")
    items = m.containers.spread(value, varies=True)
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = m.names.made(items[before : len(items) - after])
    tail = items[len(items) - after :] if after else []
    f.stack.extend(reversed([*items[:before], middle, *tail]))


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    if arg == 5:
        f.stack.append(m.operators.unary("+", value))
    elif arg == 6:
        f.stack.append(m.names.made(tuple(value)))
    elif arg == 3:
        # A StopIteration that leaves a generator becomes a RuntimeError (PEP 479).
        f.stack.append(_stop_iteration(value))
    elif arg in _TYPE_PARAMETERS:
        f.stack.append(m.names.made(type_parameter(_TYPE_PARAMETERS[arg], value)))
    elif arg == 10:
        f.stack.append(subscript_generic(value))
    else:
        m.break_graph("unsupported_opcode", f"CALL_INTRINSIC_1 {arg}")


def _stop_iteration(error: BaseException) -> BaseException:
    if isinstance(error, StopIteration):
        replacement = RuntimeError("generator raised StopIteration")
        replacement.__cause__ = replacement.__context__ = error
        return replacement
    return error


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(m: Machine, f: Frame, arg: int) -> None:
    if arg == 1:
        raised = m.pop(f)
        f.stack.append(reraise_star(m, m.pop(f), raised))
        return
    if arg == 4:
        parameters = m.pop(f)
        m.peek(f).__type_params__ = parameters
        return
    m.break_graph("unsupported_opcode", f"CALL_INTRINSIC_2 {arg}: type parameters with bounds")


#: Argument of the intrinsic -> prefix of the parameter's name.
_TYPE_PARAMETERS = {7: "", 8: "**", 9: "*"}
