"""The interpreter of graph breaks: its instructions have CPython's own meaning.

It runs frames with real values, as a code region left them at a break. Callees run eagerly.
"""

from __future__ import annotations
import __future__

import functools
import inspect
import itertools
import operator
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tracer_core.bytecode import opcodes  # fills the handler table
from tracer_core.bytecode.code import BRANCHES, JUMPS, queries_locals
from tracer_core.bytecode.frame import NULL, Frame, contents, unbound_free_variable
from tracer_core.bytecode.host_builtins import builtins_of, use_own_builtins
from tracer_core.bytecode.interpreter import Leave, Machine
from tracer_core.bytecode.on_stack_replacement import can_be_replaced, replacement
from tracer_core.bytecode.opcodes.operators import BINARY, COMPARE, INPLACE, UNARY
from tracer_core.bytecode.tracebacks import (
    call_from,
    calling_code,
    calling_line,
    extended,
    history,
    variables,
    without_own,
)
from tracer_core.errors import TracerError
from tracer_core.guards.own_reference import references_of_others
from tracer_core.trace.attribute_lookup import ABSENT, Entries
from tracer_core.trace.instance_creation import super_cells
from tracer_core.trace.raised_exceptions import name_in_c, qualified_name

use_own_builtins(globals())

__all__ = ["RealMachine", "opcodes"]


#: Types of values that arithmetic, comparisons and branches handle without user code and tensors.
SCALARS = frozenset({int, float, bool, str, type(None)})
_C_OR_PYTHON = (types.BuiltinFunctionType, types.FunctionType)
#: Functions that read the frames of their callers.
FRAME_QUERIES = frozenset({
    sys._getframe, inspect.currentframe, inspect.stack, traceback.extract_stack,
    traceback.format_stack, traceback.print_stack,
})  # fmt: skip
_FRAME_QUERIES = FRAME_QUERIES | {globals, locals, vars, dir, eval, exec, compile}
#: Functions that see the weak references to an object -> what they make of those of the program.
WEAK_REFERENCES: dict[Any, Callable[[list[Any]], Any]] = {
    weakref.getweakrefcount: len,
    weakref.getweakrefs: list,
}
#: Flags of code that has ``from __future__ import ...``.
_FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
#: Iterators that give items without user Python code, if they are alive when a code region starts.
_ITERABLES: tuple[Any, ...] = (
    [],
    (),
    range(0),
    range(2**70),
    "",
    b"",
    {},
    {}.keys(),
    {}.values(),
    {}.items(),
    set(),
)
SAFE_ITERATORS = frozenset(
    type(iter(x)) for x in _ITERABLES
) | {enumerate, zip, reversed, type(reversed([])), type(reversed({}))}  # fmt: skip


#: The type of what `sys.unraisablehook` is called with, which has no other name.
_UNRAISABLE: Any = next(
    kind for kind in tuple.__subclasses__() if kind.__name__ == "UnraisableHookArgs"
)


class EagerExceptions:
    """Exceptions with CPython's semantics."""

    def raises(self, error: BaseException) -> None:
        """Does nothing: every exception can be raised."""

    def drop_host_context(self, error: BaseException) -> None:
        """Does nothing: the interpreter's own code handles none."""

    def passed(self, frame: Frame, error: BaseException) -> None:
        leaves = Machine.find_handler(frame) is None
        error.__traceback__ = extended(error.__traceback__, frame, leaves)

    def history(self, error: BaseException) -> Any:
        return history(error)

    def type_name(self, value: Any, qualified: bool = False) -> str:
        return qualified_name(type(value)) if qualified else name_in_c(type(value))

    def same_history(self, original: BaseException, part: BaseException) -> None:
        """Does nothing: CPython keeps the traceback that `history` reads."""

    def look_into(self, group: BaseException) -> None:
        """Does nothing: this interpreter makes no guards."""

    def report_unraisable(self, error: BaseException, obj: Any) -> None:
        shown = without_own(error.__traceback__)
        sys.unraisablehook(_UNRAISABLE((type(error), error, shown, None, obj)))


class EagerOperators:
    """Operators with CPython's semantics."""

    def to_bool(self, value: Any) -> bool:
        return bool(value)

    def binary(self, symbol: str, left: Any, right: Any) -> Any:
        if symbol.endswith("="):
            return INPLACE[symbol[:-1]](left, right)
        return BINARY[symbol][1](left, right)

    def unary(self, symbol: str, value: Any) -> Any:
        return UNARY[symbol][1](value)

    def compare(self, symbol: str, left: Any, right: Any) -> Any:
        return COMPARE[symbol][2](left, right)

    def same(self, left: Any, right: Any) -> bool:
        return left is right


class EagerAttributes:
    """Attributes with CPython's semantics."""

    def getattr(self, obj: Any, name: str) -> Any:
        return getattr(obj, name)

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        setattr(obj, name, value)

    def delattr(self, obj: Any, name: str) -> None:
        delattr(obj, name)

    def special(self, obj: Any, name: str, default: Any) -> Any:
        raw = Entries.static(type(obj), name)
        if raw is ABSENT:
            return default
        return raw.__get__(obj, type(obj)) if hasattr(type(raw), "__get__") else raw

    def super_attribute(self, owner: Any, obj: Any, name: str) -> Any:
        return getattr(super(owner, obj), name)

    def getattr_or(self, obj: Any, name: str, default: Any) -> Any:
        return getattr(obj, name, default)


class EagerContainers:
    """Containers with CPython's semantics."""

    def contains(self, item: Any, container: Any) -> bool:
        return item in container

    def getitem(self, container: Any, key: Any) -> Any:
        return container[key]

    def setitem(self, container: Any, key: Any, value: Any) -> None:
        operator.setitem(container, key, value)

    def delitem(self, container: Any, key: Any) -> None:
        operator.delitem(container, key)

    def iterate(self, value: Any) -> Any:
        return iter(value)

    def advance(self, iterator: Any) -> tuple[bool, Any]:
        try:
            return True, next(iterator)
        except StopIteration as stop:
            return False, stop.value

    def loop(self, value: Any) -> Any:
        return iter(value)

    def spread(self, value: Any, varies: bool = False, limit: int | None = None) -> list[Any]:
        return list(value if limit is None else itertools.islice(value, limit))

    def arguments(self, value: Any) -> Any:
        return value if type(value) is tuple else list(value)

    def mapping(self, value: Any) -> dict[Any, Any]:
        return dict(value)

    def entries_of(self, value: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, dict) and type(value).__iter__ is dict.__iter__:
            yield from list(dict.items(value))
            return
        for key in list(value.keys()):
            yield key, value[key]

    def formatted(self, value: Any, spec: str) -> Any:
        return format(value, spec)

    def joined(self, parts: list[Any]) -> None:
        return None

    def added(self, left: Any, right: Any) -> None:
        return None

    def list_append(self, target: Any, value: Any) -> None:
        target.append(value)

    def list_extend(self, target: Any, values: list[Any]) -> None:
        target.extend(values)

    def dict_update(self, target: Any, items: dict[Any, Any]) -> None:
        target.update(items)


class EagerNames:
    """Names with CPython's semantics."""

    def load_global(self, frame: Frame, name: str) -> Any:
        for scope in (frame.globals, builtins_of(frame.function)):
            try:
                return scope[name]  # globals may be of a class with a `__missing__`
            except KeyError:
                pass
        raise NameError(f"name '{name}' is not defined", name=name)

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        frame.globals[name] = value

    def delete_global(self, frame: Frame, name: str) -> None:
        del frame.globals[name]

    def load_cell(self, cell: Any, name: str) -> Any:
        value = contents(cell)
        if value is NULL:
            raise unbound_free_variable(name)
        return value

    def store_cell(self, cell: Any, value: Any) -> None:
        if value is NULL:
            del cell.cell_contents
        else:
            cell.cell_contents = value

    def import_name(self, frame: Frame, name: str, fromlist: Any, level: int) -> Any:
        load = builtins_of(frame.function)["__import__"]
        if fromlist == ("*",):
            load(name)
            return sys.modules[name]
        return load(name, frame.globals, None, fromlist, level)

    def store_name(self, namespace: Any, name: str, value: Any) -> None:
        namespace[name] = value

    def free_cells(self, frame: Frame) -> tuple[Any, ...]:
        return frame.function.__closure__ or ()

    def register(self, value: Any) -> Any:
        return value


_NAMES, _EXCEPTIONS, _OPERATORS = EagerNames(), EagerExceptions(), EagerOperators()
_CONTAINERS, _ATTRIBUTES = EagerContainers(), EagerAttributes()


class RealMachine(Machine):
    """Interprets graph breaks. Mutable. raised: the last instruction raised an exception."""

    raised = may_break = False
    outer_step = advanced_at = 0

    def __init__(self) -> None:
        super().__init__()
        # Of the instance: CPython reads these faster than attributes of the class.
        self.names, self.exceptions, self.operators = _NAMES, _EXCEPTIONS, _OPERATORS
        self.containers, self.attributes = _CONTAINERS, _ATTRIBUTES
        self.attribute_writes = _ATTRIBUTES
        #: Whether CPython may take frames over; at how many frames to stop. The last instruction,
        #: and its frame.
        self._replaces, self._left = False, 0
        self._last: tuple[Frame | None, int] = (None, 0)

    @property
    def calls(self) -> RealMachine:
        """Returns the machine itself: a separate component with a reference back would keep the
        program's values alive until the next garbage collection."""
        return self

    def step(self, frames: list[Frame]) -> tuple[bool, Any]:
        """Runs one instruction of the innermost frame. (True, value) when the chain returned."""
        self.frames = frames
        frame = frames[-1]
        ip = frame.last = frame.ip
        frame.ip = ip + 1
        try:
            done = frame.code.handlers[ip](self, frame, frame.code.args[ip])
        except BaseException as error:
            self.raised = True
            self.unwind(error, 0)
            return False, None
        if done is not None and self.leave(done[0], 0):
            return True, done[0]
        return False, None

    def realize(self) -> tuple[bool, Any]:
        """Runs the instructions after a break that belong in no graph: moves, live iterators,
        arithmetic and branches on plain values. Leaves loads with unused values to the next code
        region. Returns (True, value) when the activation returned."""
        frame = self.frames[-1]
        loads: tuple[int, list[Any]] | None = None
        seen: set[int] = set()
        while True:
            ip = frame.ip
            name = frame.code.names[ip]
            allowed = _REALIZES.get(name)
            if allowed is None or ip in seen or not allowed(self, frame, frame.code.args[ip]):
                break
            if name in _LOADS:
                loads = loads or (ip, frame.stack.copy())
            elif name in _REPEATING:
                seen.add(ip)
            if name not in _KEEPS_LOADS:
                loads = None
            returned, value = self.step(self.frames)
            if returned:
                return True, value
            if self.raised:
                return False, None
        if loads is not None:
            frame.ip, frame.stack = loads
        return False, None

    def finish(self, frames: list[Frame]) -> Any:
        """Runs the chain to its end. CPython takes a frame over where a loop jumps back."""
        return self.leave_frames(frames, 0)[1]

    def finish_raising(self, frames: list[Frame], error: BaseException) -> Any:
        """Raises an exception in the innermost frame, then runs the chain to its end."""
        self.frames = frames
        self.unwind(error, 0)
        return self.finish(frames)

    def leave_frames(self, frames: list[Frame], left: int) -> tuple[bool, Any]:
        """Like `finish`, but stops where so many frames are left. Returns (True, value) when the
        chain returned."""
        self.frames, self._replaces, self._left = frames, True, left
        while True:
            try:
                return True, self.run(0)
            except Leave:
                if len(frames) <= left:
                    return False, None
                go_on = replacement(frames[-1])
            try:
                value = call_from(_callers(frames[:-1]), go_on, (), {}) if frames[1:] else go_on()
            except BaseException as error:
                frames.pop()
                if not frames:
                    raise error.with_traceback(without_own(error.__traceback__))  # noqa: B904  (the same exception)
                frames[-1].last = frames[-1].ip - 1
                self.unwind(error, 0)
            else:
                if self.leave(value, 0):
                    return True, value

    def before_step(self, base: int) -> None:
        if not self._replaces:
            return
        if len(self.frames) <= self._left:
            raise Leave
        frame = self.frames[-1]
        last, self._last = self._last, (frame, frame.ip)
        jumped_back = frame is last[0] and frame.ip < last[1]
        if jumped_back and self.handled() is None and can_be_replaced(frame):
            raise Leave

    def call(self, frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        frame.stack.append(self.call_value(function, args, kwargs))

    def call_value(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if function is super and not args and not kwargs:
            frame = self.frames[-1]
            owner, first = super_cells(frame)
            cls = frame.locals[owner].cell_contents
            return super(cls, first.cell_contents if type(first).__name__ == "cell" else first)
        if type(function) in _C_OR_PYTHON and len(args) == 1 and function in WEAK_REFERENCES:
            return WEAK_REFERENCES[function](references_of_others(args[0]))
        if type(function) in _C_OR_PYTHON and function in _FRAME_QUERIES:
            if function in FRAME_QUERIES:
                raise TracerError(f"{function.__name__}() after a graph break: the frames of the program are gone; "
                                  "tracer_core.disable the function that calls it")  # fmt: skip
            if function is compile:
                return _compiled(self.frames[-1], *args, **kwargs)
            if function in (eval, exec) and args and isinstance(args[0], (str, bytes)):
                source = args[0].lstrip() if function is eval else args[0]
                mode = function.__name__
                args = [_compiled(self.frames[-1], source, "<string>", mode), *args[1:]]
            if function not in (eval, exec):
                if not args and not kwargs:
                    return self._names(function)
            else:
                args, kwargs = self._scoped(args, kwargs)
        handled = self.handled()
        callers = _callers(self.frames)
        if handled is None:
            return call_from(callers, function, args, kwargs)
        trace = handled.__traceback__
        # the callee sees the handled exception, which is also the context of what it raises
        try:
            raise handled
        except BaseException as error:
            if error is not handled:
                raise
            handled.__traceback__ = trace
            try:
                return call_from(callers, function, args, kwargs)
            except BaseException as raised:
                self.raising = raised  # CPython has given it its context
                raise

    def resume_generator(self, frame: Frame, error: BaseException | None) -> Any:
        self.frames = [frame]
        if error is not None:
            self.unwind(error, 0)
        return self.run(0)

    def _scoped(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of eval or exec with the variables that the program's frame gives
        in place of this file's. Keywords name scopes since Python 3.13."""
        inputs = dict(zip(("globals", "locals"), args[1:], strict=False))
        if sys.version_info >= (3, 13) and inputs.keys().isdisjoint(kwargs):
            inputs |= {name: kwargs[name] for name in ("globals", "locals") if name in kwargs}
            kwargs = {name: value for name, value in kwargs.items() if name not in inputs}
        if inputs.get("globals") is None:
            inputs["globals"] = self.frames[-1].globals
            if inputs.get("locals") is None:
                inputs["locals"] = self._names(locals)
        return [*args[:1], inputs["globals"], inputs.get("locals"), *args[3:]], kwargs

    def _names(self, function: Any) -> Any:
        frame = self.frames[-1]
        if function is globals:
            return frame.globals
        if frame.namespace is None and not queries_locals(frame.code.raw):
            raise TracerError(f"the variables of {frame.function.__qualname__} are asked for under another name than "
                              f"{function.__name__}, and those that nothing reads any more are gone")  # fmt: skip
        if frame.namespace is not None:
            return sorted(frame.namespace) if function is dir else frame.namespace
        result = variables(frame)
        return sorted(result) if function is dir else result


def _callers(frames: list[Frame]) -> list[tuple[types.CodeType, dict[str, Any]]]:
    """Returns these frames as `call_from` takes them."""
    return [(calling_code(*calling_line(item.code, item.ip - 1)), item.globals) for item in frames]


_COMPILE = inspect.signature(compile)


def _compiled(frame: Frame, *args: Any, **kwargs: Any) -> Any:
    """``compile`` in the program's code: with the ``__future__`` imports of that, not of this
    file."""
    try:
        inputs = _COMPILE.bind(*args, **kwargs)
    except TypeError:
        return compile(*args, **kwargs)  # raises Python's own error
    inputs.apply_defaults()
    if not inputs.arguments["dont_inherit"] and isinstance(inputs.arguments["flags"], int):
        inputs.arguments["flags"] |= frame.code.raw.co_flags & _FUTURES
        inputs.arguments["dont_inherit"] = True
    return compile(*inputs.args, **inputs.kwargs)


# -- what `realize` may run
# ----------------------------------------------------------------------------


def _always(machine: RealMachine, frame: Frame, arg: Any) -> bool:
    return True


def _loads_plain(machine: RealMachine, frame: Frame, arg: int) -> bool:
    value = frame.locals[arg]
    returns = frame.code.names[frame.ip + 1] == "RETURN_VALUE"
    return value is not NULL and (type(value) in SCALARS or returns)


def _unpacks_tuple(machine: RealMachine, frame: Frame, arg: int) -> bool:
    return type(frame.stack[-1]) is tuple and len(frame.stack[-1]) == arg


def _two_plain(machine: RealMachine, frame: Frame, arg: Any) -> bool:
    return type(frame.stack[-1]) in SCALARS and type(frame.stack[-2]) in SCALARS


def _one_plain(machine: RealMachine, frame: Frame, arg: Any) -> bool:
    return type(frame.stack[-1]) in SCALARS


def _safe_iterator(machine: RealMachine, frame: Frame, arg: Any) -> bool:
    return type(frame.stack[-1]) in SAFE_ITERATORS


def _is_outermost(machine: RealMachine, frame: Frame, arg: Any) -> bool:
    return len(machine.frames) == 1 and frame.on_return is None and not frame.code.is_generator


_LOADS = frozenset({"LOAD_CONST", "LOAD_FAST"})
_KEEPS_LOADS = _LOADS | {"NOP", "RESUME", "PRECALL"}
_REPEATING = JUMPS | BRANCHES | {"FOR_ITER"}
#: opcode -> whether `realize` may run it; the opcodes of a compiled resume function.
_REALIZES: dict[str, Callable[[RealMachine, Frame, Any], bool]] = {
    **dict.fromkeys(("NOP", "RESUME", "PRECALL", "POP_TOP", "STORE_FAST", "LOAD_CONST"), _always),
    **dict.fromkeys(JUMPS, _always),
    **dict.fromkeys(BRANCHES, _one_plain),
    "LOAD_FAST": _loads_plain, "UNPACK_SEQUENCE": _unpacks_tuple, "COMPARE_OP": _two_plain,
    "BINARY_OP": _two_plain,
    "FOR_ITER": _safe_iterator, "RETURN_VALUE": _is_outermost, "RETURN_CONST": _is_outermost,
}  # fmt: skip
