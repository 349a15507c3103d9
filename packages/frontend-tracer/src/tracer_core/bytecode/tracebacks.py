"""Host frames in place of interpreted ones: in the tracebacks of exceptions that leave interpreted
frames, and below functions that the interpreter calls.

In a traceback, entries of the interpreter's own frames are replaced by file, line, column and
function of the user's code; all other entries stay. A callee finds its callers' file, line,
function and globals in the frames below it, as warnings and logs do.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tracer_core.bytecode.code import Code, decode
from tracer_core.bytecode.frame import NULL, Frame, contents
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.limits import MAX_TRACEBACK_CALLERS

use_own_builtins(globals())

#: Bytes of an instruction without its caches.
UNIT = 2
_NOP = dis.opmap["NOP"]
#: Position table entry for up to 8 units without a position; add their number less one.
_NO_POSITION, _MAX_RUN = 0x80 | 15 << 3, 8
_OWN = (str(Path(__file__).parent.parent) + "/", "<tracer_core ")


def is_own(frame: types.FrameType) -> bool:
    """Returns whether a frame belongs to the interpreter or to code that it generated."""
    code = frame.f_code
    return code.co_filename.startswith(_OWN) or code.co_varnames[:1] == _MARK


def _calling(_callee: Any, args: Any, kwargs: Any) -> Any:
    return _callee(*args, **kwargs) if kwargs else _callee(*args)


#: Variable of the frames of `_calling` that no program uses.
_MARK = ("_callee of tracer_core",)
_CALLING = _calling.__code__.replace(co_varnames=(*_MARK, "args", "kwargs"))
_BODY = max(line for _, _, line in _CALLING.co_lines() if line) - _CALLING.co_firstlineno


@functools.lru_cache(maxsize=4096)
def calling_code(filename: str, name: str, qualname: str, line: int) -> types.CodeType:
    """Returns the code of a function that calls its first argument, and whose frame seems to stand
    at a line of the program."""
    return _CALLING.replace(
        co_filename=filename, co_name=name, co_qualname=qualname, co_firstlineno=line - _BODY
    )


def calling_line(code: Code, ip: int) -> tuple[str, str, str, int]:
    """Returns the arguments of `calling_code` for an instruction."""
    raw = code.raw
    return raw.co_filename, raw.co_name, raw.co_qualname, code.lines[ip] or raw.co_firstlineno


_C_OR_PYTHON = (types.BuiltinFunctionType, types.FunctionType)
#: Function that counts frames -> its parameters, the one that counts, its default, and what it is for
#: the frame that calls.
_COUNT_FRAMES: dict[Any, tuple[tuple[str, ...], str, int, int]] = {
    warnings.warn: (("message", "category", "stacklevel", "source"), "stacklevel", 1, 1),
    typing._caller: (("depth", "default"), "depth", 1, 0),  # type: ignore[attr-defined]
}
if hasattr(sys, "_getframemodulename"):
    _COUNT_FRAMES[sys._getframemodulename] = (("depth",), "depth", 0, 0)


def call_from(
    callers: Sequence[tuple[types.CodeType, dict[str, Any]]],
    function: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a function from below the frames of the program. callers: (calling code, globals) of
    each, the outermost first."""
    if type(function) in _C_OR_PYTHON and function in _COUNT_FRAMES:
        args, kwargs = _beyond(len(callers), function, args, kwargs)
    packed = (function, args, kwargs)
    call = None
    for code, namespace in reversed(callers[-MAX_TRACEBACK_CALLERS:]):
        if call is not None:
            packed = (call, packed, {})
        call = types.FunctionType(code, namespace)
    return call(*packed)  # type: ignore[misc]


def _beyond(
    n_callers: int, function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Lets a function that asks for a caller of the activation pass over the interpreter's own
    frames."""
    names, name, default, nearest = _COUNT_FRAMES[function]
    inputs = {**dict(zip(names, args, strict=False)), **kwargs}
    level, fits = inputs.get(name, default), len(inputs) == len(args) + len(kwargs)
    if not fits or type(level) is not int or level - nearest < n_callers:
        return args, kwargs
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame, level = frame.f_back, level + 1
    return (), {**inputs, name: level}


def raising_instruction(error: BaseException) -> tuple[types.FrameType, str] | None:
    """Returns the innermost frame of an exception's traceback, and the opcode that raised there."""
    entry = error.__traceback__
    if entry is None:
        return None
    while entry.tb_next is not None:
        entry = entry.tb_next
    code = entry.tb_frame.f_code.co_code
    return entry.tb_frame, dis.opname[code[entry.tb_lasti]]


def without_own(entry: types.TracebackType | None) -> types.TracebackType | None:
    """Drops the leading entries of a traceback that belong to the interpreter."""
    while entry is not None and is_own(entry.tb_frame):
        entry = entry.tb_next
    return entry


def extended(entry: types.TracebackType | None, frame: Frame, leaves: bool) -> types.TracebackType:
    """Prepends an entry for an interpreted frame at instruction `frame.last`. leaves: the exception
    leaves the frame, whose variables are final then and stay alive with the traceback."""
    rest = without_own(entry)
    if is_raised_again(frame) and rest is not None and _shows(rest, frame.code.raw):
        return rest  # the traceback has the frame already
    bound = variables(frame) if leaves else {}
    return _entry(rest, frame.code, frame.last, frame.globals, bound)


def history(error: BaseException) -> tuple[tuple[str, str, int], ...]:
    """Returns the user-code entries of an exception's traceback: (file, function, instruction)."""
    entries, entry = [], error.__traceback__
    while entry is not None:
        if not is_own(entry.tb_frame):
            code = entry.tb_frame.f_code
            entries.append((code.co_filename, code.co_qualname, entry.tb_lasti))
        entry = entry.tb_next
    return tuple(entries)


def is_raised_again(frame: Frame) -> bool:
    """Returns whether the frame stands at an instruction that re-raises an exception."""
    return continues(frame.code, frame.last)


def continues(code: Code, index: int) -> bool:
    """Returns whether an instruction re-raises: RERAISE, or ``raise`` without an operand."""
    return code.names[index] == "RERAISE" or (
        code.names[index] == "RAISE_VARARGS" and code.args[index] == 0
    )


def rebuilt(passed: tuple[tuple[types.CodeType, int], ...]) -> types.TracebackType | None:
    """Builds a traceback of interpreted frames alone, given as (code, instruction), innermost
    first."""
    entry: types.TracebackType | None = None
    for raw, last in passed:
        entry = _entry(entry, decode(raw), last, {}, {})
    return entry


def variables(frame: Frame) -> dict[str, Any]:
    """Returns the values of a frame's bound variables by name."""
    bound: dict[str, Any] = {}
    for name, value in zip(frame.code.locals_names, frame.locals, strict=True):
        if type(value) is types.CellType:
            value = contents(value)
        if value is not NULL:
            bound[name] = value
    return bound


def _entry(
    rest: types.TracebackType | None,
    code: Code,
    last: int,
    namespace: dict[str, Any],
    bound: dict[str, Any],
) -> types.TracebackType:
    frame = _polyfill(code.raw, code.offsets[last], namespace, bound)
    return types.TracebackType(rest, frame, code.offsets[last], code.lines[last])


def _shows(entry: types.TracebackType, raw: types.CodeType) -> bool:
    shown = entry.tb_frame.f_code
    return (shown.co_filename, shown.co_name, shown.co_firstlineno) == (
        raw.co_filename, raw.co_name, raw.co_firstlineno)  # fmt: skip


def _raise() -> None:
    raise None  # type: ignore[misc]  # noqa: B016  (a TypeError, by two instructions)


def _polyfill(
    raw: types.CodeType, offset: int, namespace: dict[str, Any], bound: dict[str, Any]
) -> types.FrameType:
    """Returns a host frame that looks like an interpreted one: its code has the same names and
    position table, it ended at the same instruction, and it has the same globals and variables."""
    text, table = _fitting(_ending_at(offset), raw)
    code = _raise.__code__.replace(
        co_filename=raw.co_filename, co_name=raw.co_name, co_qualname=raw.co_qualname,
        co_firstlineno=raw.co_firstlineno, co_code=text, co_linetable=table,
        co_argcount=len(bound), co_nlocals=len(bound), co_varnames=tuple(bound),
    )  # fmt: skip
    function = types.FunctionType(code, namespace)
    itself: list[Any] = []
    itself.append(_without_callers(functools.partial(function, *bound.values()), itself))
    entry = next(*itself)
    frame: types.FrameType = entry.tb_next.tb_frame
    return frame


def _without_callers(function: Callable[[], None], itself: list[Any]) -> Iterator[Any]:
    """Yields the traceback of a function that raises. A continuation generator has no caller: the
    frame would keep alive those of the interpreter, and what they hold. itself: the generator."""
    yield _traceback_of(function, itself.pop())


def _traceback_of(function: Callable[[], None], caller: Any) -> Any:
    """Returns the traceback of a function that raises. Its frame keeps the generator `caller`
    suspended: one that ends gets a caller (3.12)."""
    try:
        function()
    except TypeError as error:
        return error.__traceback__


def _ending_at(offset: int) -> bytes:
    """Returns the instructions of `_raise`, the last one moved to an offset (or the first possible
    one behind it)."""
    text = _raise.__code__.co_code
    missing = max(offset + UNIT - len(text), 0) // UNIT
    return text[:UNIT] + bytes((_NOP, 0)) * missing + text[UNIT:]


def _fitting(text: bytes, raw: types.CodeType) -> tuple[bytes, bytes]:
    """Returns (instructions, position table) of equal length. Under a profiler or debugger, CPython
    3.11 unrolls the table into an array as long as the code: a longer table would overflow it."""
    missing = (len(text) - len(raw.co_code)) // UNIT
    if missing <= 0:
        return text + bytes((_NOP, 0)) * -missing, raw.co_linetable
    return text, raw.co_linetable + unplaced(missing)


def unplaced(n_units: int) -> bytes:
    """Returns entries of a position table for so many units of code without a position."""
    runs = (min(_MAX_RUN, n_units - start) for start in range(0, n_units, _MAX_RUN))
    return bytes(_NO_POSITION | length - 1 for length in runs)
