"""Suspended generators: generators that are live across a graph break, with their frames as data.

`SuspendedGenerator` holds a frame's layout and values behind a real generator object, which is one
object of Python's own type for its whole lifetime. Advancing that object in eager mode gives the
generator's values (`RealMachine` runs its frame). A trace works on a copy of the frame, which
generated code then puts in place with `set_frame`.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from tracer_core.bytecode.frame import LazyValue
from tracer_core.bytecode.frame_layout import FrameLayout, frames_of, layout_of
from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.fx_capture.provenance import SUSPENDED_GENERATORS, kept_when_dead
from tracer_core.trace.eager_interpreter import RealMachine
from tracer_core.trace.generators import TracedGenerator, acts_when_closed

use_own_builtins(globals())


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a frame stands (None: it has ended), and whether it has begun. Equal facts are one
    object."""

    layout: FrameLayout | None
    started: bool


class SuspendedGenerator:
    """The frame behind a suspended generator. Mutable. values: of the frame, as `layout_of` gives
    them. primed: the generator object stands at the first ``yield`` of `_run`."""

    __slots__ = ("facts", "values", "primed")

    def __init__(self) -> None:
        self.facts = _FINISHED
        self.values: tuple[Any, ...] = ()
        self.primed = False

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
        running = TracedGenerator(RealMachine(), frame)
        running.started = self.facts.started
        try:
            return running.send(sent) if error is None else running.throw(error)
        finally:
            if running.finished:
                self.facts = _FINISHED
            else:
                layout, values = layout_of(frame)
                self.facts, self.values = _interned(Facts(layout, running.started)), tuple(values)
            frame.generator = None


_known_facts: dict[Facts, Facts] = {}


def _interned(facts: Facts) -> Facts:
    return _known_facts.setdefault(facts, facts)


_FINISHED = _interned(Facts(None, True))


def _run(suspended: SuspendedGenerator) -> Generator[Any, Any, Any]:
    """The body of every suspended generator."""
    sent, error = None, None
    if suspended.primed:
        try:
            sent = yield
        except BaseException as raised:
            error = raised
    while True:
        try:
            value = suspended.advance(sent, error)
        except StopIteration as stop:
            return stop.value
        sent, error = None, None
        try:
            sent = yield value
        except BaseException as raised:
            error = raised


# -- for generated code
# ---------------------------------------------------------------------------------


def new_suspended_generator(name: str, qualname: str) -> Any:
    """Makes a suspended generator without a frame."""
    suspended = SuspendedGenerator()
    made: Any = _run(suspended)
    made.__name__, made.__qualname__ = name, qualname
    SUSPENDED_GENERATORS[made] = suspended
    return made


def set_frame(
    generator: Any,
    layout: FrameLayout | None,
    values: tuple[Any, ...],
    started: bool,
    finished: bool,
) -> None:
    """Sets where the generator stands from now on."""
    suspended: SuspendedGenerator = SUSPENDED_GENERATORS[generator]
    if finished:
        suspended.facts, suspended.values = _FINISHED, ()
        if not generator.gi_running:
            generator.close()
    else:
        suspended.facts, suspended.values = _interned(Facts(layout, started)), values
    if started and not suspended.primed and generator.gi_frame is not None:
        suspended.primed = True
        if not generator_has_begun(generator):
            next(generator)


def generator_has_begun(generator: Any) -> bool:
    """Returns whether the body of a suspended generator (`_run`) has begun to run."""
    return bool(generator.gi_frame is None or generator.gi_frame.f_lasti >= _FIRST_INSTRUCTION)


def _first_instruction() -> int:
    probe: Any = _run(SuspendedGenerator())
    before: int = probe.gi_frame.f_lasti
    return before + 1


_FIRST_INSTRUCTION = _first_instruction()


def generator_facts(generator: Any) -> Facts | None:
    """Returns what a later trace guards: where the frame stands. None for other generators, and for
    one that runs at the moment."""
    suspended = SUSPENDED_GENERATORS.get(generator)
    return None if suspended is None or generator.gi_running else suspended.facts


def generator_values(generator: Any) -> tuple[Any, ...]:
    """Returns the values of the frame."""
    values: tuple[Any, ...] = SUSPENDED_GENERATORS[generator].values
    return values


#: The value that marks an exhausted iterator.
END: Any = type("End", (), {"__repr__": lambda self: "END"})()
#: Iterators whose next items can be read without consuming them.
STEPPED: tuple[type, ...] = (
    type(iter(range(0))),
    type(iter(range(2**70))),
    type(iter([])),
    type(iter(())),
)


def looks_ahead(iterator: Any) -> bool:
    """Returns whether the next items of an iterator can be read without consuming them."""
    return type(iterator) in STEPPED


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
        not _is_iterator(one) or is_stepped(_real(one)) for one in frame.stack
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
    return layout_of(generator.frame, lambda value: kept_when_dead(_real(value)))
