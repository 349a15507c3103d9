"""Continues generators and iterators that existed before the trace.

A generator whose frame is data (suspended_generators.py) becomes a `TracedGenerator` on a copy of
the frame; an iterator over numbers or tensors gives its next items. Generated lines then move both
to where the trace left them. Neither is touched while the trace runs; the position of the frame and
each item taken are guarded.
"""

from __future__ import annotations

import copy
import gc
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.bytecode.code import decode
from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.resume_points import frames_of
from tracer_core.debug.crossed_limits import crossed
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import SourceKind
from tracer_core.limits import MAX_ITEMS_AHEAD
from tracer_core.trace.generator_continuations import (
    END,
    TABLES,
    counted,
    generator_facts,
    generator_values,
    items_left,
    looks_ahead,
    peeked,
)
from tracer_core.trace.generators import LazyIterator, TracedGenerator

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class LiveGenerators:
    """Continued generators and iterators of one trace. Mutable. generators: id of a generator ->
    its traced copy and the generator. taken: id of an iterator -> the iterator to advance, and its
    number of steps."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self.generators: dict[int, tuple[TracedGenerator, Any]] = {}
        self.taken: dict[int, tuple[Any, int]] = {}
        self._replicas: dict[int, tuple[Any, Any]] = {}
        #: id of an iterator over a table -> the items that it had left.
        self._left: dict[int, Any] = {}

    def generator(self, generator: Any) -> Any:
        """Returns the traced copy of a generator that existed before the trace and whose frame is
        data; other generators unchanged."""
        known = self.generators.get(id(generator))
        if known is not None:
            return known[0]
        facts = generator_facts(generator)
        if facts is None:
            return generator
        provenance, layout = self._tracer.provenance, facts.layout
        source, make = provenance.source_of(generator), provenance.sources.make
        provenance.follows_late = True
        provenance.guard(GuardKind.IS, make(source, SourceKind.CONTINUATION), facts)
        if layout is None:
            traced_generator = TracedGenerator(self._tracer, Frame(_ENDED, decode(facts.code)))
            traced_generator.finished = True
            return self._stands_for(generator, traced_generator, source)
        names, values = layout.code.co_varnames, generator_values(generator)
        labels = ["", *(names[i] if i < len(names) else "a cell" for i in layout.locals)]
        parts: list[Any] = [
            LazyValue(
                value,
                make(
                    source,
                    SourceKind.CONTINUATION_VALUE,
                    (i, labels[i] if i < len(labels) else "its stack"),
                ),
            )
            for i, value in enumerate(values)
        ]
        self._tracer.start_function(values[0], parts[0].source)
        (frame,) = frames_of((layout,), [values[0], *parts[1:]])
        traced_generator = TracedGenerator(self._tracer, frame)
        traced_generator.started = facts.started
        return self._stands_for(generator, traced_generator, source)

    def _stands_for(self, generator: Any, result: TracedGenerator, source: Any) -> TracedGenerator:
        result.name, result.code_name = generator.__name__, generator.__qualname__
        self._tracer.provenance.register(result, source)
        self.generators[id(generator)] = result, generator
        return result

    def replica(self, iterator: Any) -> Any:
        """Returns an iterator that gives the items of a zip, map, filter or enumerate from before the
        trace: it takes them of the iterators inside, which are where the position is. None for
        others."""
        if type(iterator) not in _WRAPPERS:
            return None
        known = self._replicas.get(id(iterator))
        if known is None:
            known = self._replicas[id(iterator)] = iterator, self._replicate(iterator)
        return known[1]

    def _replicate(self, iterator: Any) -> Any:
        tracer, provenance, kind = self._tracer, self._tracer.provenance, type(iterator)
        source, (_, parts, *strict) = provenance.source_of(iterator), iterator.__reduce__()
        make = provenance.sources.make

        def part(index: int) -> Any:
            at = make(source, SourceKind.COMPUTED, f"{{b}}.__reduce__()[1][{index}]")
            return provenance.read(parts[index], at)

        def items(index: int) -> Any:
            inner = part(index)
            owner = iterator if kind is enumerate else inner

            def step() -> Any:
                more, item = tracer.containers.advance(inner, owner)
                if not more:
                    raise StopIteration
                return item

            return LazyIterator(tracer, kind.__name__, step)

        call, to_bool = tracer.calls.call_value, tracer.operators.to_bool
        if kind is zip:
            return zip(*map(items, range(len(parts))), strict=bool(strict))
        if kind is enumerate:
            provenance.follows_late = True
            first = provenance.read_varying(parts[1], make(source, SourceKind.COUNT))
            add = tracer.operators.binary
            return ((add("+", first, i), item) for i, item in enumerate(items(0)))
        function = part(0)
        if kind is map:
            rows = zip(*map(items, range(1, len(parts))), strict=False)
            return (call(function, list(row), {}) for row in rows)
        return (
            item
            for item in items(1)
            if to_bool(item if function in (None, bool) else call(function, [item], {}))
        )

    def next_of(self, iterator: Any, owner: Any = None) -> tuple[bool, Any] | None:
        """Returns (True, item) or (False, None) for an iterator that existed before the trace; None
        if only eager mode can advance it. owner: the iterator that generated code advances in its
        place."""
        tracer = self._tracer
        read = self._reader_of(iterator)
        if read is None:
            return None
        if any(map(self._has_changed, gc.get_referents(iterator))):
            return None
        owner = iterator if owner is None else owner
        before, steps = self.taken.get(id(iterator), (owner, 0))
        if before is not owner:
            return None
        tracer.provenance.follows_late = True
        item = read(iterator, steps)
        if item is _UNKNOWN:
            return None
        self.taken[id(iterator)] = owner, steps + 1
        tracer.side_effects.mutations += 1
        return (False, None) if item is END else (True, item)

    def _reader_of(self, iterator: Any) -> Callable[[Any, int], Any] | None:
        """Returns the method that reads the items of an iterator without advancing it."""
        if type(iterator) in TABLES:
            return self._of_table
        if type(iterator) is itertools.count and counted(iterator)[1] is not None:
            return self._of_count
        return self._ahead if looks_ahead(iterator) else None

    def _of_count(self, counter: Any, steps: int) -> Any:
        """Does `_ahead` for an itertools.count."""
        provenance, (number, step) = self._tracer.provenance, counted(counter)
        base, make = provenance.source_of(counter), provenance.sources.make
        number = provenance.read_varying(number, make(base, SourceKind.COUNTED, 0))
        step = provenance.read(step, make(base, SourceKind.COUNTED, 1))
        return self._tracer.operators.binary("+", number, steps * step) if steps else number

    def _ahead(self, iterator: Any, steps: int) -> Any:
        """Returns what an iterator gives after so many steps, guarded."""
        provenance, item = self._tracer.provenance, peeked(iterator, steps)
        source = provenance.sources.make(provenance.source_of(iterator), SourceKind.PEEKED, steps)
        if item is not END:
            return provenance.read_varying(item, source)
        provenance.guard(GuardKind.IS, source, END)
        return item

    def _of_table(self, iterator: Any, steps: int) -> Any:
        """Does `_ahead` for an iterator over a dictionary or a set: all that is left of it
        is one list, which is guarded as far as it is read."""
        left = self._left.get(id(iterator))
        if left is None:
            provenance = self._tracer.provenance
            source = provenance.sources.make(provenance.source_of(iterator), SourceKind.LEFT)
            left = self._left[id(iterator)] = provenance.read(items_left(iterator), source)
        if left is None:
            return _UNKNOWN
        reads = self._tracer.reads
        if steps < len(left):
            return reads.list_item(left, steps, varies=True)
        return END if steps >= reads.length(left) else _UNKNOWN

    def is_read_ahead(self, iterator: Any) -> bool:
        """Returns whether a trace that begins to take all items of an iterator from before it can
        read them: they are few."""
        if type(iterator) in _WRAPPERS:
            parts = iterator.__reduce__()[1]
            inner = [part for part in parts if isinstance(part, Iterator)]
            return bool(inner) and all(map(self.is_read_ahead, inner))
        if type(iterator) not in TABLES and not looks_ahead(iterator):
            return False
        left = operator.length_hint(iterator)
        if left > MAX_ITEMS_AHEAD:
            crossed("MAX_ITEMS_AHEAD", reached=left)
        return left <= MAX_ITEMS_AHEAD

    def _has_changed(self, container: Any) -> bool:
        return self._tracer.effects.peek(container) is not None

    def steps(self, use: Callable[[Any], str]) -> list[str]:
        """Returns the lines that advance the iterators. They come before other side effects, which
        may change the iterated containers."""
        source_of = self._tracer.provenance.source_of
        return [
            f"advance_by({use(source_of(iterator))}, {steps})"
            for iterator, steps in self.taken.values()
        ]

    def moved(self) -> list[tuple[Any, TracedGenerator]]:
        """Returns (source, traced copy) of each generator that was advanced or closed."""
        source_of = self._tracer.provenance.source_of
        return [(source_of(real), built) for built, real in self.generators.values() if built.moved]

    def objects(self) -> list[Any]:
        """Returns the objects that must stay different objects."""
        return [real for _, real in self.generators.values()] + [
            item for item, _ in self.taken.values()
        ]


#: The item of an iterator that only eager mode can advance.
_UNKNOWN: Any = object()
#: Iterators that keep no position of their own, and enumerate.
_WRAPPERS = (zip, map, filter, enumerate)


def _ended() -> Any:
    """The function of a finished generator's frame."""
    yield


_ENDED: Any = _ended


def is_stepped(iterator: Any) -> bool:
    """Returns whether a later code region can continue a generator's loop over this iterator."""
    if not looks_ahead(iterator):
        return False
    items = list(copy.copy(iterator))
    return all(type(item) in (int, float) or isinstance(item, torch.Tensor) for item in items)
