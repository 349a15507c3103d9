"""Draws from ``random.Random`` objects that existed before the trace.

The numbers of a call are drawn ahead of its guards, without advancing the object, and are symbolic
scalars of the trace. An object that the program seeds inside the trace gives constants from then on.
Generated code then samples the same for real. A number that the trace needs the value of breaks
the graph before its draw.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Restart, Retry
from tracer_core.guards.source import Source, SourceKind
from tracer_core.limits import MAX_RANDOM_BITS, MAX_RANDOM_DRAWS
from tracer_core.trace.component import Component

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_KIND, _REASON = "side_effect_native", "Python's random numbers are drawn"
#: The attribute that every object has, part of its state.
GAUSS_NEXT = "gauss_next"
Step = tuple[str, tuple[Any, ...]]


class RngState:
    """What the trace did to one object. Mutable. steps: methods and their arguments, in order. ahead:
    those before the first seed. allocation_step: the instruction of each of these. seeded: a copy of the object
    since the first seed."""

    def __init__(self, obj: random.Random) -> None:
        self.obj = obj
        self.steps: list[Step] = []
        self.ahead = Ahead()
        self.allocation_step: list[int] = []
        self.seeded: random.Random | None = None


class Ahead:
    """The samples of one object ahead of the guards, a key of their source. It grows until the end of
    the trace."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def __repr__(self) -> str:
        return repr(self.steps)


def run_steps(obj: random.Random, steps: Sequence[Step]) -> list[Any]:
    """Calls these methods of an object; returns their results."""
    return [getattr(obj, method)(*args) for method, args in steps]


def rng_ahead(obj: random.Random, steps: Sequence[Step]) -> list[Any]:
    """Returns what these methods will return, without advancing the object."""
    state = obj.getstate()
    try:
        return run_steps(obj, steps)
    finally:
        obj.setstate(state)


def with_state(state: Any) -> random.Random:
    """Makes an object of this state."""
    result = random.Random()
    result.setstate(state)
    return result


class PythonRng(Component):
    """The objects that one trace drew from. Mutable. states: id of an object -> what the trace did."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.states: dict[int, RngState] = {}

    def known(self, obj: random.Random) -> random.Random | None:
        """Returns an object in the state that `obj` has in every call: itself, or a copy; None if
        its state is another in each."""
        if self.provenance.is_fresh(obj):
            return obj
        state = self.states.get(id(obj))
        return None if state is None else state.seeded

    def _of(self, obj: random.Random) -> RngState:
        return self.states.setdefault(id(obj), RngState(obj))

    def change(self, obj: random.Random, method: str, args: tuple[Any, ...]) -> Any:
        """Applies a method that seeds the object, or samples from an object of known state."""
        self.tracer.side_effects.mutations += 1
        if self.provenance.is_fresh(obj):
            return getattr(obj, method)(*args)
        state = self._of(obj)
        if len(state.steps) >= MAX_RANDOM_DRAWS:
            crossed("MAX_RANDOM_DRAWS")
            self.tracer.break_graph(_KIND, _REASON)
        copy = state.seeded or random.Random()
        result = getattr(copy, method)(*args)
        state.seeded = copy
        state.steps.append((method, args))
        return result

    def sample(self, obj: random.Random, method: str, args: tuple[Any, ...]) -> Any:
        """Draws one number from an object whose state is another in each call."""
        bits = args[0] if method == "getrandbits" and args else 0
        small = all(type(arg) is float or abs(arg) < 1 << MAX_RANDOM_BITS for arg in args)
        if not small or bits > MAX_RANDOM_BITS:
            crossed("MAX_RANDOM_BITS")
        if not (self.tracer.shapes.allowed and self.recorder.concrete is None and small):
            self.tracer.break_graph(_KIND, _REASON)
        many = len(self._of(obj).steps) >= MAX_RANDOM_DRAWS
        if many:
            crossed("MAX_RANDOM_DRAWS")
        if bits > MAX_RANDOM_BITS or many:
            self.tracer.break_graph(_KIND, _REASON)
        if self.recorder.fakes.shape_env is None:
            raise Retry(self.tracer.outer_step, _KIND, _REASON, random_numbers=True)
        state, make = self._of(obj), self.sources.make
        value = rng_ahead(obj, [*state.steps, (method, args)])[-1]
        self.tracer.side_effects.mutations += 1
        state.steps.append((method, args))
        state.ahead.steps.append((method, args))
        state.allocation_step.append(self.tracer.outer_step)
        self.provenance.follows_late = True
        numbers = make(self.provenance.source_of(obj), SourceKind.RNG_SAVED, state.ahead)
        position = len(state.ahead.steps) - 1
        return self.provenance.read_varying(
            value, make(numbers, SourceKind.ITEM, position), always=True
        )

    def require_unused(self, source: Source) -> None:
        """Restarts with a break before the draw that a number depends on: the trace needs the value
        of the number."""
        if not self.states:
            return
        for part in _parts(source):
            if part.base is not None and part.base.kind is SourceKind.RNG_SAVED:
                state = next(item for item in self.states.values() if item.ahead is part.base.key)
                raise Restart(state.allocation_step[part.key], _KIND, _REASON)

    def steps(self, use: Callable[[Source], str], constant: Callable[[Any], str]) -> list[str]:
        """Returns the lines that draw for real."""
        return [
            f"run_steps({use(self.provenance.source_of(item.obj))}, {constant(tuple(item.steps))})"  # type: ignore[arg-type]
            for item in self.states.values()
            if item.steps
        ]

    def objects(self) -> list[Any]:
        """Returns the objects that must stay different objects."""
        return [item.obj for item in self.states.values()]


def _parts(source: Source | None) -> list[Source]:
    """Returns the sources that a number is computed from."""
    sources: list[Source] = []
    while source is not None:
        sources.append(source)
        if source.kind is SourceKind.COMPUTED and isinstance(source.key, tuple):
            sources += [part for other in source.key[1] for part in _parts(other)]
        source = source.base
    return sources
