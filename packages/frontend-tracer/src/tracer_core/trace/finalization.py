"""Finds the instruction that drops the last reference to an object whose death the program sees.

In: the state that a trace starts with, and what the program overwrites. While an object with a
finalizer or a weak reference is held by nothing but the activation (or by what the trace changes),
each instruction is followed by the question whether the activation still reaches it. If not, the
graph is broken before that instruction, so that the object dies where it does in eager.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.bytecode.frame import NULL, LazyValue
from tracer_core.bytecode.interpreter import Machine
from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Restart
from tracer_core.guards.object_lifetime import CONTINUATIONS, end_is_seen, has_handlers
from tracer_core.limits import (
    MAX_FINALIZATION_OBJECTS,
    MAX_FINALIZATION_VISITS,
    MAX_OVERWRITTEN_OBJECTS,
)
from tracer_core.trace.component import Component
from tracer_core.trace.generators import TracedGenerator, is_left_inside
from tracer_core.trace.live_generators import LiveGenerators

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Objects that live long and lead to everything, and those that hold nothing.
_NOT_ENTERED = (
    types.ModuleType,
    type,
    torch.nn.Module,
    torch.Tensor,
    types.CodeType,
    Machine,
    Component,
)
#: By id: a metaclass may have a hash of its own.
_LEAVES = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None), torch.Tensor,
torch.nn.Parameter, type(NULL))))  # fmt: skip


class _Held:
    """Which of the objects that lead to those whose death is to be seen the frames of a trace hold,
    by id. Mutable. Only the innermost frame, and one that has been innermost since, are looked at
    again: nothing else changes."""

    def __init__(self) -> None:
        self._leading: set[int] = set()
        self._held: list[tuple[Any, set[int]]] = []

    def begin(self, leading: set[int], frames: list[Any]) -> None:
        """Notes what the frames hold after a search. leading: ids of the objects that lead there."""
        self._leading = leading
        self._held = [(frame, self._of(frame)) for frame in frames]

    def lost_one(self, frames: list[Any]) -> bool:
        """Returns whether the frames hold an object no more that they held when last asked."""
        held = self._held
        first = max(min(len(held), len(frames)) - 1, 0)
        while first and held[first][0] is not frames[first]:
            first -= 1
        before = set().union(*(ids for _, ids in held[first:]))
        held[first:] = [(frame, self._of(frame)) for frame in frames[first:]]
        return bool(before) and not before <= set().union(*(ids for _, ids in held))

    def _of(self, frame: Any) -> set[int]:
        return self._leading.intersection(map(id, _slots(frame)))


class Finalization:
    """The objects of one trace whose death is to be seen. Mutable."""

    def __init__(self, tracer: Tracer, live_generators: LiveGenerators) -> None:
        self._tracer, self._copies = tracer, live_generators.generators
        self._ending: dict[int, Any] = {}
        #: Containers from before the trace that held such objects when the program changed them.
        self._changed: list[Any] = []
        self._held = _Held()
        #: Changes by the program at the last search; None before the first one.
        self._mutations: int | None = None
        self._left = MAX_FINALIZATION_VISITS

    def start(self, state: tuple[Any, ...]) -> None:
        """Notes the objects that only the activation holds. state: its values."""
        if any(_may_lead(value) for value in state):
            self._ending = self._owned(state)

    def overwritten(self, holder: Any, values: Iterable[Any]) -> None:
        """Notes that the program changes `holder`, which held these values."""
        for value in values:
            if id(type(value)) not in _LEAVES:
                reached = self._reached([value], MAX_OVERWRITTEN_OBJECTS)
                ending = {id(item): item for item in reached if _may_end(item)}
                if ending:
                    self._ending |= ending
                    self._changed.append(holder)
                    self._mutations = None

    def check(self, step: int) -> None:
        """Restarts with a break before `step`, the last instruction, if it dropped an object."""
        if not self._ending:
            return
        tracer = self._tracer
        mutations, self._mutations = self._mutations, tracer.side_effects.mutations
        if mutations == self._mutations and not self._held.lost_one(tracer.frames):
            return
        holders: dict[int, list[int]] = {}
        slots = [value for frame in tracer.frames for value in _slots(frame)]
        result = self._reached([*slots, *self._changed], holders=holders)
        self._left -= len(result)
        if self._left < 0:
            crossed("MAX_FINALIZATION_VISITS")
            self._ending.clear()
            return
        reached = {id(item) for item in result}
        self._held.begin(_leading(self._ending.keys() & reached, holders), tracer.frames)
        for key, value in list(self._ending.items()):
            if key not in reached:
                del self._ending[key]
                if step and self._is_seen(value):
                    what = type(value).__qualname__
                    raise Restart(
                        step, "finalizer", f"what may be the last reference to a {what} is dropped"
                    )

    def _is_seen(self, value: Any) -> bool:
        """Returns whether the program sees the death of an object, as it is now."""
        if id(value) in self._copies:
            return is_left_inside(self._copies[id(value)][0])
        return end_is_seen(value)

    def _parts(self, value: Any) -> list[Any]:
        """Returns the objects that an object holds."""
        if type(value) is TracedGenerator:
            originals = [real for result, real in self._copies.values() if result is value]
            return [*_slots(value.frame), value.frame.function, *originals]
        if type(value) is types.GeneratorType:
            if id(value) in self._copies:
                return [self._copies[id(value)][0]]
            if value in CONTINUATIONS:
                return list(CONTINUATIONS[value].values)
        if not _may_lead(value) or not gc.is_tracked(value):
            return []
        if type(value) is types.FunctionType:
            held = (value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__)
            return [item for item in held if item]
        return gc.get_referents(value)

    def _reached(
        self,
        roots: list[Any],
        most: int = MAX_FINALIZATION_OBJECTS,
        holders: dict[int, list[int]] | None = None,
    ) -> list[Any]:
        """Returns the objects that these lead to, themselves among them; at most so many. holders:
        gets the id of each object -> those of what holds it."""
        result = {id(value): value for value in roots}
        queue = deque(result.values())
        while queue and len(result) < most:
            holder = queue.popleft()
            for part in self._parts(holder):
                if id(type(part)) in _LEAVES:
                    continue
                if holders is not None:
                    holders.setdefault(id(part), []).append(id(holder))
                if id(part) not in result:
                    result[id(part)] = part
                    queue.append(part)
        if queue:
            few = most == MAX_OVERWRITTEN_OBJECTS
            crossed("MAX_OVERWRITTEN_OBJECTS" if few else "MAX_FINALIZATION_OBJECTS")
        return list(result.values())

    def _owned(self, state: tuple[Any, ...]) -> dict[int, Any]:
        """Returns the objects with an observable death that nothing but the state holds, by id: as
        the garbage collector does, those whose references are all from the state or from one
        another."""
        nodes = self._reached([value for value in state if _may_lead(value)])
        if not any(map(_may_end, nodes)):
            return {}
        inside = Counter(map(id, state))
        for i in range(len(nodes)):
            inside.update(map(id, self._parts(nodes[i])))
        outside = [
            nodes[i]
            for i in range(len(nodes))
            if sys.getrefcount(nodes[i]) - _OWN_REFERENCES - inside[id(nodes[i])] > 0
        ]
        reachable = {id(item) for item in self._reached(outside)}
        return {id(node): node for node in nodes if id(node) not in reachable and _may_end(node)}


def _leading(ends: Iterable[int], holders: dict[int, list[int]]) -> set[int]:
    """Returns the objects that lead to some, by id, and these themselves."""
    result = set(ends)
    queue = list(result)
    while queue:
        for holder in holders.get(queue.pop(), ()):
            if holder not in result:
                result.add(holder)
                queue.append(holder)
    return result


def _slots(frame: Any) -> Iterator[Any]:
    """Yields the values that a frame holds and that are not plain."""
    rest = () if frame.on_return is None else frame.on_return[1:]
    for value in (*frame.locals, *frame.stack, *frame.exceptions, *rest):
        value = value.value if type(value) is LazyValue else value
        if id(type(value)) not in _LEAVES:
            yield value


def _may_end(value: Any) -> bool:
    """Returns whether the program sees the death of an object, perhaps after a generator has been
    advanced."""
    continuation = CONTINUATIONS.get(value) if type(value) is types.GeneratorType else None
    return end_is_seen(value) if continuation is None else has_handlers(continuation.facts.code)


def _may_lead(value: Any) -> bool:
    return id(type(value)) not in _LEAVES and not issubclass(type(value), _NOT_ENTERED)


def _own_references() -> int:
    nodes = [object()]
    return sys.getrefcount(nodes[0])


#: References to an object that `_owned` itself makes.
_OWN_REFERENCES = _own_references()
