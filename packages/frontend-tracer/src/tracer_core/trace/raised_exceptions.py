"""Tracks exceptions in a trace: where each was first raised, and the program frames it passed."""

from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracer_core import torch_private
from tracer_core.bytecode.code import decode
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.tracebacks import (
    continues,
    history,
    is_own,
    is_raised_again,
    raising_instruction,
)
from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break, Restart, RunEagerly
from tracer_core.guards.object_layout import HEAP_TYPE, IMMUTABLE_TYPE
from tracer_core.limits import MAX_SEARCHED_ITEMS
from tracer_core.trace.component import Component
from tracer_core.trace.generators import LazyIterator
from tracer_core.trace.host_objects import Hashed, HostString, HostValue, SortKey
from tracer_core.trace.symbolic_scalars import SYMBOLS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Types of the tracer's own objects in place of the program's objects.
_POLYFILLS = (LazyIterator, HostString, HostValue, Hashed, SortKey, *SYMBOLS)
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})


def may_name_polyfill(error: BaseException) -> bool:
    """Returns whether an exception's message may show one of the tracer's own objects: C code
    raised it, or library Python code with such an object in a variable raised it about types.
    Exceptions about a missing entry and arithmetic show none; the tracer's own messages name types
    by `type_name`."""
    if isinstance(error, AttributeError) and isinstance(error.obj, _POLYFILLS):
        return True
    raised = raising_instruction(error)
    if raised is None or isinstance(error, (LookupError, ArithmeticError)):
        return False
    frame, opcode = raised
    if opcode in _RAISES and (is_own(frame) or not isinstance(error, TypeError)):
        return False
    # An AttributeError names a variable's type; any other message may show contents of arguments.
    depth = 1 if isinstance(error, AttributeError) else 4
    return _holds_polyfill(list(frame.f_locals.values()), depth)


def _holds_polyfill(value: Any, depth: int) -> bool:
    if isinstance(value, (*_POLYFILLS, torch.Tensor)):
        return not isinstance(value, torch.Tensor) or torch_private.is_fake(value)
    if depth == 0 or type(value) not in (list, tuple, dict):
        return False
    if len(value) > MAX_SEARCHED_ITEMS:
        crossed("MAX_SEARCHED_ITEMS", reached=len(value))
    items = itertools.islice(value.values() if type(value) is dict else value, MAX_SEARCHED_ITEMS)
    return any(_holds_polyfill(item, depth - 1) for item in items)


def name_in_c(cls: type) -> str:
    """Returns a type's name as C code's error messages give it: with the module, for a type that C
    code made."""
    made_by_class_statement = cls.__flags__ & HEAP_TYPE and not cls.__flags__ & IMMUTABLE_TYPE
    if made_by_class_statement or cls.__module__ == "builtins":
        return cls.__name__
    return f"{cls.__module__}.{cls.__name__}"


def qualified_name(cls: type) -> str:
    """Returns a type's whole name as C code's error messages since Python 3.13 give it."""
    module = cls.__module__
    is_builtin = not isinstance(module, str) or module == "builtins"
    return cls.__qualname__ if is_builtin else f"{module}.{cls.__qualname__}"


_OWN = str(Path(__file__).parents[1])


def _is_of_host(error: BaseException) -> bool:
    """Returns whether the tracer's code called what raised an exception."""
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_OWN)


class Raised(NamedTuple):
    """An exception of the trace. step: where it was first raised. passed: (code, instruction) of
    the frames it passed, innermost first."""

    error: BaseException
    step: int
    passed: list[tuple[types.CodeType, int]]


class RaisedExceptions(Component):
    """Exceptions in a trace. Mutable. raised: id -> an exception that passed a frame of the
    program."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.raised: dict[int, Raised] = {}
        #: id of a traceback that the program reads -> the traceback and its exception.
        self.tracebacks: dict[int, tuple[Any, BaseException]] = {}
        self._shared: dict[Any, tuple[tuple[types.CodeType, int], ...]] = {}

    def was_raised(self, error: BaseException) -> bool:
        """Returns whether an exception came through a frame of the program."""
        return id(error) in self.raised

    def note(self, error: BaseException) -> None:
        """Registers that an exception begins to unwind the chain of frames."""
        self.raised[id(error)] = Raised(error, self.tracer.outer_step, [])

    def forget_frames(self) -> None:
        """Drops the tracer's frames from the exceptions that the trace made: they are cycles, which
        would keep alive what the frames hold."""
        reported = getattr(sys.exception(), "__cause__", None)
        for item in self.raised.values():
            if item.error is not reported and self.provenance.is_fresh(item.error):
                item.error.__traceback__ = None

    def raises(self, error: BaseException) -> None:
        """Called before an instruction of the program raises."""
        if isinstance(error, KeyboardInterrupt):
            raise Break("native_python", "KeyboardInterrupt is raised by the program")
        if not self.was_raised(error) and self.has_seen(error.__traceback__):
            raise RunEagerly("an exception is raised with the traceback of another")

    def drop_host_context(self, error: BaseException) -> None:
        """Takes exceptions out of the chain of contexts that the tracer's own code handled. One from
        before the trace may have passed the tracer's code, but the program handles it."""
        context = error.__context__
        if context is None:  # nearly always: the frames need not be searched
            return
        handled = [exception for frame in self.tracer.frames for exception in frame.exceptions]
        held = {id(item.value if type(item) is LazyValue else item) for item in handled}
        while context is not None and id(context) not in held:
            if self.was_raised(context) or not _is_of_host(context):
                break
            context = context.__context__
        if context is not error.__context__:
            error.__context__ = context

    def passed(self, frame: Frame, error: BaseException) -> None:
        entries = self.raised[id(error)].passed
        if not (is_raised_again(frame) and entries and entries[-1][0] is frame.code.raw):
            entries.append((frame.code.raw, frame.last))

    def history(self, error: BaseException) -> Any:
        passed = [
            (raw, last)
            for raw, last in self.frames_passed(error)
            if not continues(decode(raw), last)
        ]
        return passed, history(error)

    def type_name(self, value: Any, qualified: bool = False) -> str:
        """Returns the name of a value's type, as C code gives it or whole. Breaks if the value is one
        of the tracer's own objects, whose real type's name is unknown: eager mode then raises the exception."""
        if _holds_polyfill(value, 0):
            raise Restart(self.tracer.outer_step, "native_python", "TypeError is raised")
        return qualified_name(type(value)) if qualified else name_in_c(type(value))

    def same_history(self, original: BaseException, part: BaseException) -> None:
        """Gives a part of an exception group the history of the group."""
        known = self.raised.get(id(original))
        if known is not None:
            self.raised[id(part)] = Raised(part, known.step, list(known.passed))

    def look_into(self, group: BaseException) -> None:
        """Breaks for an exception group that existed before the trace: no guard covers its
        contents."""
        if isinstance(group, BaseExceptionGroup):
            if not self.provenance.is_fresh(group):
                raise Break(
                    "unsupported_value", "an exception group from before this region is split"
                )
            for part in group.exceptions:
                self.look_into(part)

    def first_raised(self, error: BaseException) -> int:
        """Returns the step at which an exception, or the first in its chain of causes and contexts,
        was raised in this trace; 0 if none was."""
        steps, seen, chain = [], set(), [error]
        while chain:
            item = chain.pop()
            if id(item) in seen:
                continue
            seen.add(id(item))
            known = self.raised.get(id(item))
            steps += [known.step] if known is not None else []
            chain += [link for link in (item.__cause__, item.__context__) if link is not None]
        return min(steps, default=0)

    def frames_passed(self, error: BaseException) -> tuple[tuple[types.CodeType, int], ...]:
        """Returns the frames that an exception passed in this trace, innermost first: the same
        object for exceptions with one traceback, such as the parts of a group."""
        known = self.raised.get(id(error))
        if known is None:
            return ()
        passed = tuple(known.passed)
        return self._shared.setdefault((known.step, passed), passed)

    def traceback_of(self, error: BaseException) -> Any:
        """``error.__traceback__``, which can leave the trace only together with the exception."""
        source = self.provenance.source_of(error)
        if source is not None and id(error) not in self.raised:
            slot = self.sources.slot(source, "__traceback__")
            return self.provenance.read(error.__traceback__, slot)
        # the first exception read with it: the program may give it to others (with_traceback)
        self.tracebacks.setdefault(id(error.__traceback__), (error.__traceback__, error))
        return error.__traceback__

    def report_unraisable(self, error: BaseException, obj: Any) -> None:
        raise Break("native_python", f"a {type(error).__name__} that cannot be raised is shown")

    def look_into_traceback(self) -> None:
        """Runs the activation in CPython if the trace raised an exception: the frames of its
        traceback, and their variables, are the interpreter's."""
        if self.raised:
            raise RunEagerly("the program looks into the traceback of an exception")

    def has_seen(self, entry: types.TracebackType | None) -> bool:
        """Returns whether the program has read a traceback, in this trace or before."""
        return entry is not None and (
            self.provenance.source_of(entry) is not None or id(entry) in self.tracebacks
        )

    def owner_of_traceback(self, entry: types.TracebackType) -> BaseException | None:
        """Returns the exception whose traceback this trace read as `entry`."""
        return self.tracebacks[id(entry)][1] if id(entry) in self.tracebacks else None
