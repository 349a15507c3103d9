"""On-stack replacement: hands an interpreted frame over to CPython where a loop jumps back.

The code of the frame's function gets a prologue that puts the variables and the stack in place and
jumps into the loop. Positions, names and exception handlers stay those of the function.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from tracer_core.bytecode.code import ENDS, JUMPS, NOT_PLAIN
from tracer_core.bytecode.frame import NULL, Frame
from tracer_core.bytecode.host_builtins import builtins_of, use_own_builtins
from tracer_core.bytecode.instructions import Instruction, instructions
from tracer_core.bytecode.tracebacks import UNIT, unplaced

use_own_builtins(globals())

_JUMPS_OR_ENDS = JUMPS | ENDS
_PACKED = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
#: An exception table has numbers of 6 bits in a byte: more of the number follows; an entry begins.
_MORE, _BEGINS = 0x40, 0x80


def can_be_replaced(frame: Frame) -> bool:
    """Returns whether CPython can take over a frame before its next instruction."""
    if frame.exceptions or frame.namespace is not None:
        return False
    depths = _depths(frame.code.raw)
    function = frame.function
    return (
        depths.get(_target(frame)) == len(frame.stack)
        and frame.code.offsets[frame.ip] != frame.code.offsets[frame.ip - 1]
        and builtins_of(function) is builtins_of(types.FunctionType(_NOTHING, frame.globals))
    )


def replacement(frame: Frame) -> Callable[[], Any]:
    """Returns a function that goes on where a frame stands, and empties the frame: it takes what
    the frame holds with it. Only if `can_be_replaced`."""
    raw = frame.code.raw
    held: list[types.CellType] = []
    first = len(frame.code.locals_names)
    prologue = bytearray()

    def emit(name: str, arg: int = 0) -> None:
        for shift in (24, 16, 8):
            if arg >> shift:
                prologue.extend((dis.EXTENDED_ARG, arg >> shift & 0xFF))
        prologue.extend((dis.opmap[name], arg & 0xFF))

    def load(value: Any) -> None:
        """Pushes a value, of which nothing else holds a reference then."""
        place = first + len(held)
        held.append(types.CellType(value))
        emit("LOAD_DEREF", place)
        emit("DELETE_DEREF", place)

    values = frame.locals[: frame.code.first_free]
    n_values = sum(value is not NULL for value in (*values, *frame.stack))
    emit("COPY_FREE_VARS", len(raw.co_freevars) + n_values)
    emit("RESUME")
    n_arguments = raw.co_argcount
    for place, value in enumerate(values):
        if value is not NULL:
            load(value)
            emit("STORE_FAST", place)
        elif place < n_arguments:
            emit("DELETE_FAST", place)
    for value in frame.stack:
        if value is NULL:
            emit("PUSH_NULL")
        else:
            load(value)
    emit("JUMP_FORWARD", _target(frame) // UNIT)
    code = raw.replace(
        co_code=bytes(prologue) + raw.co_code,
        co_linetable=unplaced(len(prologue) // UNIT) + raw.co_linetable,
        co_exceptiontable=_shifted(raw, len(prologue) // UNIT),
        co_freevars=(*raw.co_freevars, *(f"<held {n}>" for n in range(len(held)))),
        co_flags=raw.co_flags & ~_PACKED,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_stacksize=max(raw.co_stacksize, len(frame.stack) + 1),
    )
    closure = (*frame.locals[frame.code.first_free :], *held)
    function = types.FunctionType(code, frame.globals, frame.function.__name__, None, closure)
    frame.locals.clear()
    frame.stack.clear()
    return functools.partial(function, *(None,) * n_arguments)


def _nothing() -> None: ...


_NOTHING = _nothing.__code__


def _target(frame: Frame) -> int:
    """Returns the offset of a frame's next instruction, its prefixes included."""
    code, offset = frame.code.raw.co_code, frame.code.offsets[frame.ip]
    while offset >= UNIT and code[offset - UNIT] == dis.EXTENDED_ARG:
        offset -= UNIT
    return offset


@functools.lru_cache(maxsize=512)
def _depths(raw: types.CodeType) -> dict[int, int]:
    """Returns how many values are on CPython's stack before each instruction (by offset); nothing
    for code that CPython cannot enter in the middle."""
    if raw.co_flags & NOT_PLAIN:
        return {}
    result = instructions(raw)
    following = {item.begin: after for item, after in zip(result, result[1:], strict=False)}
    known = {item.begin: item for item in result}
    depths = {result[0].begin: 0}
    ways = [result[0]]
    handlers = [(item.start, item.end, item.target, item.depth + item.lasti + 1)
                for item in dis._parse_exception_table(raw)]  # type: ignore[attr-defined]  # fmt: skip

    def goes_on(at: int, depth: int) -> None:
        if at not in depths and at in known:
            depths[at] = depth
            ways.append(known[at])

    while ways:
        way = ways.pop()
        depth = depths[way.begin]
        for start, end, target, then in handlers:
            if start <= way.offset < end:
                goes_on(target, then)
        if way.target is not None:
            goes_on(way.target, depth + _effect(way, jump=True))
        if way.begin in following and way.name not in _JUMPS_OR_ENDS:
            goes_on(following[way.begin].begin, depth + _effect(way, jump=False))
    return depths


def _effect(instruction: Instruction, jump: bool) -> int:
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=jump)


def _shifted(raw: types.CodeType, n_units: int) -> bytes:
    """Returns the exception table of code that so many units were put before."""
    table = bytearray()
    for item in dis._parse_exception_table(raw):  # type: ignore[attr-defined]
        start, length = item.start // UNIT + n_units, (item.end - item.start) // UNIT
        target = item.target // UNIT + n_units
        entry = bytearray()
        for number in (start, length, target, item.depth << 1 | item.lasti):
            entry.extend(_digits(number))
        entry[0] |= _BEGINS
        table += entry
    return bytes(table)


def _digits(number: int) -> Iterator[int]:
    """Yields a number by 6 bits, the highest first."""
    n_more = max((number.bit_length() - 1) // 6, 0)
    for at in range(n_more, -1, -1):
        yield number >> 6 * at & 0x3F | (_MORE if at else 0)
