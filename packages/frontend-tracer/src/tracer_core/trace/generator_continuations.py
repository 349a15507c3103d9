"""Continuation generators: generators that are live across a graph break, with their frames as
data.

`SuspendedGenerator` holds a frame's layout and values behind a real generator object, which is one
object of Python's own type for its whole lifetime. Advancing that object in eager mode gives the
generator's values (`RealMachine` runs its frame). A trace works on a copy of the frame, which
generated code then puts in place with `set_frame`.
"""

from __future__ import annotations

import collections
import copy
import inspect
import itertools
import re
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tracer_core.bytecode.frame import LazyValue
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.bytecode.resume_points import (
    FrameLayout,
    GeneratorPosition,
    frames_of,
    layout_of,
)
from tracer_core.bytecode.tracebacks import without_own
from tracer_core.guards.direct_roots import STEPPED
from tracer_core.guards.object_lifetime import CONTINUATIONS, must_outlive_variable
from tracer_core.trace.eager_interpreter import RealMachine
from tracer_core.trace.generators import TracedGenerator, acts_when_closed

use_own_builtins(globals())


class ContinuationGenerator:
    """The frame behind a continuation generator. Mutable. values: of the frame, as `layout_of` gives
    them. primed: the generator object stands at the first ``yield`` of `_run`."""

    __slots__ = ("facts", "values", "primed")

    def __init__(self, code: types.CodeType) -> None:
        self.facts = GeneratorPosition(code, None, True).interned()
        self.values: tuple[Any, ...] = ()
        self.primed = False

    def stand_at(self, layout: FrameLayout | None, values: Sequence[Any], started: bool) -> None:
        self.facts = GeneratorPosition(self.facts.code, layout, started).interned()
        self.values = tuple(values)

    def acts_when_closed(self) -> bool:
        """Returns whether closing the generator may run code: it stands inside handlers."""
        layout = self.facts.layout
        if layout is None or not self.facts.started:
            return False
        return acts_when_closed(*frames_of((layout,), self.values))

    def advance(self, sent: Any, error: BaseException | None) -> Any:
        """Runs ``send(sent)`` or ``throw(error)`` in eager mode."""
        layout = self.facts.layout
        if layout is None:
            if error is not None:
                raise error
            raise StopIteration
        (frame,) = frames_of((layout,), self.values)
        self.values = ()
        machine = RealMachine()
        # ``throw()`` and ``close()`` of an inner generator are called from this frame.
        machine.frames = [frame]
        running = TracedGenerator(machine, frame)
        running.started = self.facts.started
        try:
            return running.send(sent) if error is None else running.throw(error)
        finally:
            self.stand_at(*frame_parts(running), running.started)


def _run(continuation: ContinuationGenerator) -> Generator[Any, Any, Any]:
    """The body of every continuation generator. No variable of its own holds what it yields or what is
    thrown into it: neither would die where it does in eager."""
    sent: Any = None
    passed: list[Any] = [None]
    if continuation.primed:
        try:
            sent = yield
        except BaseException as raised:
            passed = [raised]
    while True:
        try:
            passed.append(continuation.advance(sent, passed.pop()))
        except StopIteration as stop:
            return stop.value
        except BaseException as raised:
            raise raised.with_traceback(without_own(raised.__traceback__))  # noqa: B904  (the same exception)
        sent = None
        try:
            sent = yield passed.pop()
            passed.append(None)
        except BaseException as raised:
            passed.append(raised)


#: Code of a generator function -> `_run` with the flags and names of that code: ``await`` takes a
#: generator by its flags.
_BODIES: WeakKeyDictionary[types.CodeType, Callable[[ContinuationGenerator], Any]] = (
    WeakKeyDictionary()
)


# -- for generated code
# ---------------------------------------------------------------------------------


def new_continuation(code: types.CodeType, name: str = "", qualname: str = "") -> Any:
    """Makes a continuation generator of a generator function's code, without a frame. name,
    qualname: of the function, where they are not the code's."""
    body = _BODIES.get(code)
    if body is None:
        body = _BODIES[code] = types.FunctionType(
            _run.__code__.replace(
                co_flags=_run.__code__.co_flags | code.co_flags & inspect.CO_ITERABLE_COROUTINE,
                co_name=code.co_name,
                co_qualname=code.co_qualname,
            ),
            globals(),
        )
    continuation = ContinuationGenerator(code)
    result: Any = body(continuation)
    result.__name__ = name or code.co_name
    result.__qualname__ = qualname or code.co_qualname
    CONTINUATIONS[result] = continuation
    return result


def set_frame(
    generator: Any,
    layout: FrameLayout | None,
    values: tuple[Any, ...],
    started: bool,
    finished: bool,
) -> None:
    """Sets where the generator stands from now on."""
    continuation: ContinuationGenerator = CONTINUATIONS[generator]
    if finished:
        continuation.stand_at(None, (), True)
        if not generator.gi_running:
            generator.close()
    else:
        continuation.stand_at(layout, values, started)
    if started and not continuation.primed and generator.gi_frame is not None:
        continuation.primed = True
        if not generator_has_begun(generator):
            next(generator)


def generator_has_begun(generator: Any) -> bool:
    """Returns whether the body of a continuation generator (`_run`) has begun to run."""
    return bool(generator.gi_frame is None or generator.gi_frame.f_lasti >= _FIRST_INSTRUCTION)


def _first_instruction() -> int:
    probe: Any = _run(ContinuationGenerator(_run.__code__))
    before: int = probe.gi_frame.f_lasti
    return before + 1


_FIRST_INSTRUCTION = _first_instruction()


def generator_facts(generator: Any) -> GeneratorPosition | None:
    """Returns what a later trace guards: where the frame stands. None for other generators, and for
    one that runs at the moment."""
    continuation = CONTINUATIONS.get(generator)
    return None if continuation is None or generator.gi_running else continuation.facts


def generator_values(generator: Any) -> tuple[Any, ...]:
    """Returns the values of the frame."""
    values: tuple[Any, ...] = CONTINUATIONS[generator].values
    return values


#: The value that marks an exhausted iterator.
END: Any = type("End", (), {"__repr__": lambda self: "END"})()
#: Iterators over tables, all of whose items are read at once: they say where they are by a list of
#: what is left, or raise where the table has changed (a deque's says its position alone).
TABLES: tuple[type, ...] = (
    type(iter({})),
    type(iter({}.values())),
    type(iter({}.items())),
    type(iter(set())),
    type(iter(collections.OrderedDict())),
    type(reversed({})),
    type(reversed({}.values())),
    type(reversed({}.items())),
)


def looks_ahead(iterator: Any) -> bool:
    """Returns whether the next items of an iterator can be read without consuming them."""
    return type(iterator) in STEPPED


def items_left(iterator: Any) -> list[Any] | None:
    """Returns the items that an iterator over a table will give, without advancing it; None if its
    table has changed, so that it will raise."""
    try:
        return list(copy.copy(iterator))
    except RuntimeError:
        return None


def counted(counter: Any) -> tuple[Any, Any]:
    """Returns the next number of an itertools.count and its step; None for both where they are not
    plain integers. Since CPython 3.14 only its repr shows them."""
    match = _COUNT.fullmatch(repr(counter)) if type(counter) is itertools.count else None
    return (None, None) if match is None else (int(match[1]), int(match[2] or 1))


_COUNT = re.compile(r"count\((-?\d+)(?:, (-?\d+))?\)")


def peeked(iterator: Any, steps: int) -> Any:
    """Returns what an iterator will give after so many steps, without advancing it."""
    ahead = copy.copy(iterator)
    for _ in range(steps):
        next(ahead, END)
    return next(ahead, END)


def advance_by(iterator: Any, steps: int) -> None:
    """Advances an iterator by so many steps."""
    for _ in range(steps):
        next(iterator, END)


# -- for the tracer
# -------------------------------------------------------------------------------------


def can_be_data(generator: TracedGenerator, is_stepped: Callable[[Any], bool]) -> bool:
    """Returns whether the frame of a traced generator can live across a graph break: it is in no
    handler, and a later trace can continue every iterator that it loops over (is_stepped). False
    for the tracer's own generators, which replace C objects only while a trace runs."""
    if generator.frame.function.__globals__.get("__name__", "").startswith("tracer_core."):
        return False
    if generator.running or generator.finished:
        return generator.finished
    frame = generator.frame
    return not frame.exceptions and all(
        not _is_iterator(item) or is_stepped(_real(item)) for item in frame.stack
    )


def _real(value: Any) -> Any:
    return value.value if type(value) is LazyValue else value


def _is_iterator(value: Any) -> bool:
    value = _real(value)
    return isinstance(value, Iterator) and not isinstance(
        value, (TracedGenerator, types.GeneratorType)
    )


def frame_parts(generator: TracedGenerator) -> tuple[FrameLayout | None, list[Any]]:
    """Returns the layout and the values of the frame of a traced generator."""
    if generator.finished:
        return None, []
    return layout_of(generator.frame, lambda value: must_outlive_variable(_real(value)))
