"""Container displays, unpacking, slices and f-strings."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from tracer_core.bytecode.code import opcode
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.interpreter import Machine, handlers
from tracer_core.bytecode.opcodes.exceptions import reraise_star
from tracer_core.bytecode.template_strings import INTERPOLATION, TEMPLATE
from tracer_core.bytecode.type_parameters import subscript_generic, type_parameter
from tracer_core.bytecode.versions import RUNNING
from tracer_core.guards.value_kinds import instances_have

use_own_builtins(globals())

handlers({
    "BUILD_TUPLE": lambda m, f, arg: f.stack.append(m.names.register(tuple(m.pop_n(f, arg)))),
    "BUILD_LIST": lambda m, f, arg: f.stack.append(m.names.register(m.pop_n(f, arg))),
    "BUILD_STRING": lambda m, f, arg: f.stack.append(_joined(m, f, arg)),
    "BUILD_SLICE": lambda m, f, arg: f.stack.append(slice(*m.pop_n(f, arg))),
    "FORMAT_SIMPLE": lambda m, f, arg: f.stack.append(m.containers.formatted(m.pop(f), "")),
    "LIST_TO_TUPLE": lambda m, f, arg: f.stack.append(_list_to_tuple(m, m.pop(f))),
})  # fmt: skip


def _joined(m: Machine, f: Frame, arg: int) -> Any:
    text = m.containers.joined(f.stack[-arg:])
    if text is None:
        return "".join(m.pop_n(f, arg))
    del f.stack[-arg:]
    return text


def _list_to_tuple(m: Machine, items: list[Any]) -> tuple[Any, ...]:
    # The list may be from before a graph break, where its items are read with guards.
    result: tuple[Any, ...] = m.names.register(tuple(m.containers.spread(items, varies=True)))
    return result


@opcode("BUILD_SET")
def build_set(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop_n(f, arg)
    f.stack.append(m.names.register(m.calls.call_value(set, [items], {})))


@opcode("BUILD_MAP")
def build_map(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop_n(f, 2 * arg)
    result: dict[Any, Any] = m.names.register({})
    for key, value in zip(items[::2], items[1::2], strict=True):
        m.containers.setitem(result, key, value)
    f.stack.append(result)


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(m: Machine, f: Frame, arg: int) -> None:
    keys = m.pop(f)
    f.stack.append(m.names.register(dict(zip(keys, m.pop_n(f, arg), strict=True))))


@opcode("FORMAT_VALUE")
def format_value(m: Machine, f: Frame, arg: int) -> None:
    spec = m.pop(f) if arg & 4 else ""
    value = m.pop(f)
    convert: Any = (None, str, repr, ascii)[arg & 3]
    if convert is not None:
        value = m.calls.call_value(convert, [value], {})
    f.stack.append(m.containers.formatted(value, spec))


@opcode("CONVERT_VALUE")
def convert_value(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(m.calls.call_value((None, str, repr, ascii)[arg], [m.pop(f)], {}))


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(m: Machine, f: Frame, arg: Any) -> None:
    value, spec = m.pop_n(f, 2)
    f.stack.append(m.containers.formatted(value, spec))


@opcode("BUILD_INTERPOLATION")
def build_interpolation(m: Machine, f: Frame, arg: int) -> None:
    spec = m.pop(f) if arg & 1 else ""
    value, text = m.pop_n(f, 2)
    conversion = (None, "s", "r", "a")[arg >> 2]
    f.stack.append(m.names.register(INTERPOLATION(value, text, conversion, spec)))


@opcode("BUILD_TEMPLATE")
def build_template(m: Machine, f: Frame, arg: Any) -> None:
    strings, interpolations = m.pop_n(f, 2)
    f.stack.append(m.names.register(TEMPLATE(strings[0], *itertools.chain.from_iterable(
        zip(interpolations, strings[1:], strict=True)))))  # fmt: skip


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
    if not may_iterate(value):
        raise TypeError(f"Value after * must be an iterable, not {m.exceptions.type_name(value)}")
    items = m.containers.spread(value, varies=True)
    m.containers.list_extend(m.peek(f, arg), items)


@opcode("SET_UPDATE")
def set_update(m: Machine, f: Frame, arg: int) -> None:
    items = m.pop(f)
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
    if function is NULL:
        function = m.peek(f, arg + 3)
    if not _is_mapping(value):
        kind = m.exceptions.type_name(value)
        raise TypeError(
            f"{function_source(function)} argument after ** must be a mapping, not {kind}"
        )
    twice: tuple[Any, ...] = ()
    try:
        for key, item in m.containers.entries_of(value):
            if m.containers.contains(key, target):
                twice = (key,)
                break
            m.containers.dict_update(target, {key: item})
    except KeyError as error:
        if sys.version_info < (3, 12) or len(error.args) != 1:
            raise
        twice = error.args  # 3.12 takes an error of the mapping for its own
    for key in twice:
        raise TypeError(
            f"{function_source(function)} got multiple values for keyword argument '{key}'"
        )


def may_iterate(value: Any) -> bool:
    """Returns whether CPython would look for an iterator of a value."""
    return any(instances_have(type(value), name) for name in ("__iter__", "__getitem__"))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) or instances_have(type(value), "keys")


def function_source(function: Any) -> str:
    """Returns a function's name as CPython's errors about its arguments give it."""
    name, module = getattr(function, "__qualname__", None), getattr(function, "__module__", None)
    if name is None:
        return str(function)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


def _unpacked(m: Machine, value: Any, limit: int | None = None) -> list[Any]:
    if not may_iterate(value):
        raise TypeError(f"cannot unpack non-iterable {m.exceptions.type_name(value)} object")
    return m.containers.spread(value, varies=True, limit=limit)


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(m: Machine, f: Frame, arg: int) -> None:
    value = m.pop(f)
    items = _unpacked(m, value, limit=arg + 1)
    if len(items) < arg:
        raise ValueError(f"not enough values to unpack (expected {arg}, got {len(items)})")
    if len(items) > arg:
        got = f", got {len(value)}" if type(value) in RUNNING.counted else ""
        raise ValueError(f"too many values to unpack (expected {arg}{got})")
    f.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(m: Machine, f: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = _unpacked(m, m.pop(f))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    end = len(items) - after
    f.stack.extend(reversed([*items[:before], m.names.register(items[before:end]), *items[end:]]))


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(m: Machine, f: Frame, arg: int) -> None:
    f.stack.append(INTRINSICS_1[arg](m, m.pop(f)))


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(m: Machine, f: Frame, arg: int) -> None:
    lower, upper = m.pop_n(f, 2)
    f.stack.append(INTRINSICS_2[arg](m, lower, upper))


def _stop_iteration(m: Machine, error: BaseException) -> BaseException:
    """Converts a StopIteration that leaves a generator to a RuntimeError (PEP 479)."""
    if isinstance(error, StopIteration):
        replacement = RuntimeError("generator raised StopIteration")
        replacement.__cause__ = replacement.__context__ = error
        return replacement
    return error


def _set_type_parameters(m: Machine, function: Any, parameters: Any) -> Any:
    function.__type_params__ = parameters
    return function


#: Argument of CALL_INTRINSIC_1 -> its meaning; the release's table says why it lacks the others.
INTRINSICS_1: dict[int, Callable[[Machine, Any], Any]] = {
    3: _stop_iteration,
    5: lambda m, value: m.operators.unary("+", value),
    6: _list_to_tuple,
    7: lambda m, value: m.names.register(type_parameter("", value)),
    8: lambda m, value: m.names.register(type_parameter("**", value)),
    9: lambda m, value: m.names.register(type_parameter("*", value)),
    10: lambda m, value: subscript_generic(value),
}
#: Of CALL_INTRINSIC_2.
INTRINSICS_2: dict[int, Callable[[Machine, Any, Any], Any]] = {
    1: reraise_star,
    4: _set_type_parameters,
}
