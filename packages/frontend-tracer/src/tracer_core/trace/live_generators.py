"""Generators, and the iterators that they loop over, from before a segment: how a trace goes on
with them.

In: a generator whose frame is data (shells.py), or an iterator over numbers or tensors. Out: a
`TracedGenerator` on a copy of the frame, or the iterator's next items; and the lines that put both
where the trace left them. What always holds: neither is touched while the trace runs; where it
stood, and each item that was taken, is guarded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.bytecode.frame import Frame, LazyValue
from tracer_core.bytecode.frame_layout import frames_of
from tracer_core.guards.guard import GuardKind
from tracer_core.natives.tracing import Tracing
from tracer_core.trace.generators import TracedGenerator
from tracer_core.trace.suspended_generators import (
    END,
    generator_facts,
    generator_values,
    looks_ahead,
    peeked,
)


class LiveGenerators:
    """Those of one trace. Mutable. generators: id of one from before -> what stands for it, and
    itself. taken: id of an iterator -> itself and how many steps it has made."""

    def __init__(self, tracer: Tracing) -> None:
        self._tracer = tracer
        self.generators: dict[int, tuple[TracedGenerator, Any]] = {}
        self.taken: dict[int, tuple[Any, int]] = {}

    def generator(self, generator: Any) -> Any:
        """What stands in this trace for a generator from before whose frame is data; others are as
        they are.
        """
        known = self.generators.get(id(generator))
        if known is not None:
            return known[0]
        facts = generator_facts(generator)
        if facts is None:
            return generator
        provenance, layout = self._tracer.provenance, facts.layout
        source, make = provenance.source_of(generator), provenance.sources.make
        provenance.follows_late = True
        provenance.guard(GuardKind.IS, make(source, "suspended"), facts)
        if layout is None:
            made = TracedGenerator(self._tracer, Frame(_ENDED))
            made.finished = True
            return self._stands_for(generator, made, source)
        names, values = layout.code.co_varnames, generator_values(generator)
        labels = ["", *(names[i] if i < len(names) else "a cell" for i in layout.locals)]
        parts: list[Any] = [
            LazyValue(
                value,
                make(source, "suspended_value", (i, labels[i] if i < len(labels) else "its stack")),
            )
            for i, value in enumerate(values)
        ]
        self._tracer.start_function(values[0], parts[0].source)
        (frame,) = frames_of((layout,), [values[0], *parts[1:]])
        made = TracedGenerator(self._tracer, frame)
        made.started = facts.started
        return self._stands_for(generator, made, source)

    def _stands_for(self, generator: Any, made: TracedGenerator, source: Any) -> TracedGenerator:
        made.name, made.code_name = generator.__name__, generator.__qualname__
        self._tracer.provenance.register(made, source)
        self.generators[id(generator)] = made, generator
        return made

    def next_of(self, iterator: Any) -> tuple[bool, Any] | None:
        """(True, item) or (False, None) of an iterator from before; None if it can only be advanced
        for real.
        """
        tracer = self._tracer
        if not looks_ahead(iterator) or any(map(self._has_changed, iterator.__reduce__()[1])):
            return None
        _, steps = self.taken.get(id(iterator), (None, 0))
        item = peeked(iterator, steps)
        if item is not END and not (type(item) in (int, float) or isinstance(item, torch.Tensor)):
            return None
        provenance = tracer.provenance
        provenance.follows_late = True
        source = provenance.sources.make(provenance.source_of(iterator), "peeked", steps)
        if item is END:
            provenance.guard(GuardKind.IS, source, END)
        else:
            item = provenance.read_varying(item, source)
        self.taken[id(iterator)] = iterator, steps + 1
        tracer.side_effects.mutations += 1
        return (False, None) if item is END else (True, item)

    def _has_changed(self, container: Any) -> bool:
        return self._tracer.effects.peek(container) is not None

    def steps(self, use: Callable[[Any], str]) -> list[str]:
        """The lines that make the steps. They come before other effects, which may change what is
        looped over.
        """
        source_of = self._tracer.provenance.source_of
        return [
            f"advance_by({use(source_of(iterator))}, {steps})"
            for iterator, steps in self.taken.values()
        ]

    def moved(self) -> list[tuple[Any, TracedGenerator]]:
        """(source, what stands for it) of each generator that was advanced or closed."""
        source_of = self._tracer.provenance.source_of
        return [(source_of(real), made) for made, real in self.generators.values() if made.moved]

    def objects(self) -> list[Any]:
        """What must stay different objects."""
        return [real for _, real in self.generators.values()] + [
            one for one, _ in self.taken.values()
        ]


def _ended() -> Any:
    """The function of a frame that nothing is left of."""
    yield


_ENDED: Any = _ended


def is_stepped(iterator: Any) -> bool:
    """Whether a generator's loop over this iterator can be gone on with in a later segment."""
    if not looks_ahead(iterator):
        return False
    items = list(copy.copy(iterator))
    return all(type(item) in (int, float) or isinstance(item, torch.Tensor) for item in items)
