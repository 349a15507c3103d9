"""Traces generators: a host object that drives an interpreted frame.

The object is an iterator with send, throw and close. Its frame is on the machine's chain only while
it is advanced.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import types
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracer_core.bytecode.frame import Frame
from tracer_core.graph_breaks import Break, Restart, RunEagerly

if TYPE_CHECKING:
    from tracer_core.trace.eager_interpreter import RealMachine
    from tracer_core.trace.tracer import Tracer

_GENERATOR, _COROUTINE = inspect.CO_GENERATOR, inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE
_OLD_THROW = (
    "the (type, exc, tb) signature of throw() is deprecated, use the single-arg signature instead."
)


class TracedGenerator:
    """A generator whose frame the tracer interprets. Mutable. moved: it was advanced or closed
    since it was made."""

    __slots__ = (
        "machine",
        "frame",
        "started",
        "finished",
        "yielded",
        "running",
        "name",
        "code_name",
        "allocation_step",
        "moved",
    )

    def __init__(self, machine: Tracer | RealMachine, frame: Frame) -> None:
        self.machine, self.frame = machine, frame
        self.started = self.finished = self.yielded = self.running = self.moved = False
        self.name, self.code_name = frame.function.__name__, frame.function.__qualname__
        self.allocation_step = machine.outer_step

    def is_call(self) -> bool:
        """Returns whether the program has only called the generator function so far."""
        function = self.frame.function
        simple = self.name == function.__name__ and self.code_name == function.__qualname__
        own = function.__globals__.get("__name__", "").startswith("tracer_core.")
        generator = function.__code__.co_flags & (_COROUTINE | _GENERATOR) == _GENERATOR
        return simple and generator and not (own or self.started or self.finished)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of that call."""
        code, held = self.frame.function.__code__, list(self.frame.locals)
        n_names = code.co_argcount + code.co_kwonlyargcount
        names, extra = code.co_varnames[code.co_argcount : n_names], held[n_names:]
        args = tuple(held[: code.co_argcount])
        kwargs = dict(zip(names, held[code.co_argcount : n_names], strict=True))
        if code.co_flags & inspect.CO_VARARGS:
            args += tuple(extra.pop(0))
        if code.co_flags & inspect.CO_VARKEYWORDS:
            kwargs |= extra.pop(0)
        return args, kwargs

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        self._check_not_running()
        if self.finished:
            raise StopIteration
        if not self.started:
            if value is not None:
                raise TypeError("can't send non-None value to a just-started generator")
            self.started = True
        else:
            self.frame.stack.append(value)
        return self._resume(None)

    def throw(self, error: Any, *rest: Any) -> Any:
        """Throws an exception: an object, or a class with a value and a traceback."""
        if rest and sys.version_info >= (3, 12):
            self.machine.calls.call_value(warnings.warn, [_OLD_THROW, DeprecationWarning], {})
        inner = self.delegate()
        if inner is not None:
            return self._throw_into(inner, error, rest)
        error = self._exception(error, *rest)
        if self.finished or not self.started:
            self.finished = self.moved = True
            raise error
        return self._resume(error)

    def _exception(self, error: Any, value: Any = None, traceback: Any = None) -> BaseException:
        """Returns the exception that throw() is asked for. An exception raised while it is made
        takes its place."""
        if not isinstance(traceback, (types.TracebackType, types.NoneType)):
            raise TypeError("throw() third argument must be a traceback object")
        if isinstance(error, BaseException):
            if value is not None:
                raise TypeError("instance exception may not have a separate value")
            return error
        if not (isinstance(error, type) and issubclass(error, BaseException)):
            kind = self.machine.exceptions.type_name(error)
            raise TypeError(
                f"exceptions must be classes or instances deriving from BaseException, not {kind}"
            )
        if isinstance(value, error):
            return value
        args = list(value) if isinstance(value, tuple) else [] if value is None else [value]
        try:
            result = self.machine.calls.call_value(error, args, {})
        except (Break, Restart, RunEagerly):
            raise
        except BaseException as raised:
            return raised
        if isinstance(result, BaseException):
            return result
        kind = self.machine.exceptions.type_name(result)
        return TypeError(
            f"calling {error!r} should have returned an instance of BaseException, not {kind}"
        )

    def delegate(self) -> Any:
        """Returns the iterator that the generator waits for at ``yield from``, or None."""
        if self.running or self.finished or not self.started:
            return None
        frame = self.frame
        names, args = frame.code.names, frame.code.args
        if names[frame.ip] != "RESUME" or (args[frame.ip] or 0) & 3 < 2:
            return None
        return self.machine.peek(frame)

    def _throw_into(self, inner: Any, error: Any, rest: tuple[Any, ...]) -> Any:
        """Throws an exception at ``yield from`` into the inner iterator first."""
        kind = error if isinstance(error, type) else type(error)
        if issubclass(kind, GeneratorExit):
            return self._resume(self._close_inner(inner) or self._exception(error, *rest))
        throw = self._method_of(inner, "throw")
        if throw is None:
            return self._resume(self._exception(error, *rest))
        self.running = True
        try:
            value = self.machine.calls.call_value(throw, [error, *rest], {})
            self.yielded = True
            return value
        except (Break, Restart, RunEagerly):
            raise
        except BaseException as error_of_inner:
            raised: BaseException | None = error_of_inner
        finally:
            self.running = False
        # 3.12: the bytecode takes the value of a StopIteration.
        if isinstance(raised, StopIteration) and "CLEANUP_THROW" not in self.frame.code.names:
            self._finish_delegation(raised.value)
            raised = None
        return self._resume(raised)

    def _method_of(self, inner: Any, name: str) -> Any:
        if isinstance(inner, TracedGenerator):
            return getattr(inner, name)
        return self.machine.attributes.getattr_or(inner, name, None)

    def _finish_delegation(self, value: Any) -> None:
        """Completes the ``yield from`` expression with its value."""
        frame = self.frame
        at_send = frame.code.args[frame.ip + 1]  # after RESUME comes the jump back to SEND
        frame.stack[-1] = value
        frame.ip = frame.code.args[at_send]

    def _close_inner(self, inner: Any) -> BaseException | None:
        """Closes the inner iterator; returns the exception that close() raised."""
        try:
            close = self._method_of(inner, "close")
        except Exception as error:
            self.machine.exceptions.report_unraisable(error, inner)
            close = None
        self.running = True
        try:
            if close is not None:
                self.machine.calls.call_value(close, [], {})
        except (Break, Restart, RunEagerly):
            raise
        except BaseException as raised:
            return raised
        finally:
            self.running = False
        return None

    def close(self) -> Any:
        if self.finished or not self.started:
            self.finished = self.moved = True
            return None
        inner = self.delegate()
        raised = None if inner is None else self._close_inner(inner)
        try:
            self._resume(raised or GeneratorExit())
        except GeneratorExit:
            self.finished = True
            return None
        except StopIteration as stop:
            return stop.value if sys.version_info >= (3, 13) else None
        raise RuntimeError("generator ignored GeneratorExit")

    def _check_not_running(self) -> None:
        if self.running:
            raise ValueError("generator already executing")

    def _resume(self, error: BaseException | None) -> Any:
        self._check_not_running()
        self.running, self.yielded, self.moved = True, False, True
        self.frame.generator = self
        try:
            value = self.machine.calls.resume_generator(self.frame, error)
        except StopIteration as stop:
            self.finished = True
            raise RuntimeError("generator raised StopIteration") from stop
        except (Break, Restart, RunEagerly):
            raise
        except BaseException:
            self.finished = True
            raise
        finally:
            self.running = False
            self.frame.generator = None  # else a generator that is dropped waits for the collector
        if self.yielded:
            return value
        self.finished = True
        raise StopIteration if value is None else StopIteration(value)


def _code_of(generator: TracedGenerator) -> Any:
    """Returns the function's own code object, which equals the decoded one unless the program has
    replaced it since."""
    function, raw = generator.frame.function, generator.frame.code.raw
    if function.__code__ != raw:
        return raw
    return generator.machine.attributes.getattr_or(function, "__code__", raw)


TracedGenerator.__name__ = "generator"  # the name in Python's own messages
#: Attribute of a generator -> what the program reads.
ANSWERS: dict[str, Callable[[TracedGenerator], Any]] = {
    "__class__": lambda value: types.GeneratorType,
    "__name__": lambda value: value.name,
    "__qualname__": lambda value: value.code_name,
    "gi_code": _code_of,
    "gi_running": lambda value: value.running,
    "gi_suspended": lambda value: value.started and not (value.running or value.finished),
    "gi_yieldfrom": TracedGenerator.delegate,
}


class LazyIterator:
    """An iterator of a native kind (map, filter, a user's ``__next__``) whose items the tracer
    computes on demand. Mutable. step(): returns the next item, or raises StopIteration. rest: the
    class and arguments of the native iterator that gives the items from here on, if there is one.
    """

    __slots__ = ("machine", "step", "allocation_step", "code_name", "finished", "rest")

    def __init__(
        self, machine: Tracer | RealMachine, name: str, step: Callable[[], Any], *rest: Any
    ) -> None:
        self.machine, self.step, self.code_name = machine, step, name
        self.allocation_step, self.finished = machine.outer_step, False
        self.rest = rest

    def __iter__(self) -> LazyIterator:
        return self

    def __next__(self) -> Any:
        if self.finished:
            raise StopIteration
        self.machine.advanced_at = self.machine.outer_step
        try:
            return self.step()
        except StopIteration:
            self.finished = True
            raise


#: Host objects, in place of Python's own iterators, whose methods run eagerly.
HOST_ITERATORS = (TracedGenerator, LazyIterator)


def is_left_inside(generator: TracedGenerator) -> bool:
    """Returns whether a generator stands inside handlers, which run when its last reference goes."""
    continuation = generator.started and not generator.finished
    return continuation and acts_when_closed(generator.frame)


def acts_when_closed(frame: Frame) -> bool:
    """Returns whether a suspended frame would do more with GeneratorExit than pass it on."""
    code, at = frame.code, frame.last
    while True:
        entry = next((item for item in code.exceptions if item.start <= at < item.end), None)
        if entry is None:
            return False
        at = entry.target
        while True:
            past = at + 1 if code.names[at] in _PASSES_ON else _clause_not_taken(frame, at)
            if past is None:
                break
            at = past
        # 3.12: the first converts a StopIteration that leaves a generator, the second protects
        # every ``yield from``.
        if code.names[at] == "CALL_INTRINSIC_1":
            return False
        if code.names[at] not in ("CLEANUP_THROW", "RERAISE"):
            return True


def _clause_not_taken(frame: Frame, at: int) -> int | None:
    """Returns where an ``except Name:`` at `at` continues if it does not match GeneratorExit; None
    if no such clause is there."""
    code = frame.code
    if code.names[at] != "LOAD_GLOBAL" or code.names[at + 1] != "CHECK_EXC_MATCH":
        return None
    name = code.args[at][0]
    caught = frame.globals.get(name, getattr(builtins, name, None))
    if not isinstance(caught, type) or issubclass(GeneratorExit, caught):
        return None
    jump: int | None = code.args[at + 2] if "IF_FALSE" in code.names[at + 2] else None
    return jump


#: Opcodes at the end of ``except ... as name``.
_PASSES_ON = frozenset(
    {
        "PUSH_EXC_INFO",
        "COPY",
        "POP_EXCEPT",
        "LOAD_CONST",
        "STORE_FAST",
        "DELETE_FAST",
        "SWAP",
        "NOP",
    }
)
