"""Tracks side effects in a trace: saves objects that existed before it before they are changed.

An object is *fresh* when the trace made it (or native code made it from fresh parts) and *sourced*
when it existed before and has a path. No sourced object is changed before one of the methods here
has saved it; `effects` restores it.
"""

from __future__ import annotations

import builtins
import collections
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tracer_core.fx_capture.object_mutations import Change, Effects
from tracer_core.fx_capture.set_order import can_refill
from tracer_core.graph_breaks import Break, RunEagerly
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import Source, SourceKind
from tracer_core.guards.value_kinds import is_constant
from tracer_core.trace.guarded_reads import is_literal

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_CONTAINERS = (dict, list, set, collections.OrderedDict, collections.deque)
#: id of a namespace that the host's own code reads by name too -> what a change of it replaces.
_SHARED_WITH_HOST = {id(vars(builtins)): "builtins", id(sys.modules): "modules of sys.modules"}


class LateCall(NamedTuple):
    """A call that each call of the program makes after its graph, before it replays its changes.
    lines: (arguments of `calling_code`, source of the globals) of the callers, outermost first; none
    for a call of the tracer's own."""

    lines: tuple[tuple[tuple[str, str, str, int], Source], ...]
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class HeldLock(NamedTuple):
    """A lock that the program holds. step: at which it took it."""

    lock: Any
    step: int


class SideEffects:
    """Side effects in a trace. Mutable. mutations: number of changes by the program, fresh objects
    included. late: calls in their order."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.provenance = tracer, tracer.provenance
        self.effects = Effects(self.realize)
        self.mutations = 0
        #: Hooks that the program puts on tensors from before the trace, in order.
        self.hooks: list[Any] = []
        #: Autograd nodes that a backward has passed without ``retain_graph``.
        self.passed: set[Any] = set()
        self.late: list[LateCall] = []
        #: Locks that the program holds at the moment; source -> type of those from before the trace
        #: that it has held.
        self.held: list[HeldLock] = []
        self.locks: dict[Source, type] = {}

    def release_locks(self) -> None:
        """Releases what the program holds where the trace ends."""
        while self.held:
            self.held.pop().lock.release()

    def activity(self) -> tuple[int, int]:
        """Returns two counters that grow when the program changes an object or runs an operator."""
        return self.mutations, self.tracer.recorder.op_count

    def before_change(self, target: Any, moves: bool = True) -> None:
        """Saves a container before native code changes it in any way; guards all its contents.
        moves: other than by replacing items."""
        self.mutations += 1
        self.tracer.reads.note_change(target)
        if self.provenance.source_of(target) is None:
            return
        known = self.effects.peek(target)
        if known is None or not known.all_contents:
            self.tracer.reads.expand(target)
            known = self._begin(target)
            known.all_contents = True
            if isinstance(known.before, dict):
                self.tracer.finalization.overwritten(target, known.before.values())
        known.moved |= moves

    def _begin(self, target: Any) -> Change:
        shared = _SHARED_WITH_HOST.get(id(target))
        if shared is not None:
            raise RunEagerly(f"{shared} are replaced, which the interpreter uses too", True)
        change = self._saved(target)
        if change is None:
            raise Break("unsupported_mutation", f"a {type(target).__name__} is changed")
        return change

    def _saved(self, target: Any) -> Change | None:
        known = self.effects.peek(target)
        change = known or self.effects.begin(target)
        if known is None and change is not None and not isinstance(change.before, (dict, bytes)):
            held = change.before if type(change.before) is list else [change.before]
            self.tracer.finalization.overwritten(target, held)
            if change.kind is set and not can_refill(change.before):
                raise Break("unsupported_mutation", "the order of a set could not be restored")
        return change

    def before_cell(self, cell: Any) -> None:
        """Saves a cell before its contents are set."""
        self.mutations += 1
        if self.provenance.source_of(cell) is not None:
            self._saved(cell)

    def _begin_entry(self, target: dict[Any, Any], owner: Any) -> Change | None:
        source = self.provenance.source_of(target if owner is None else owner)
        if source is None:
            return None
        if owner is not None and self.provenance.source_of(target) is None:
            self.provenance.register(target, self.provenance.sources.namespace(source))
        return self._begin(target)

    def before_store(self, target: dict[Any, Any], key: Any, owner: Any = None) -> None:
        """Saves a dictionary before one entry is set. owner: the object whose `__dict__` it is."""
        self.mutations += 1
        if owner is None and not is_constant(key):
            self.before_change(target)
        change = self._begin_entry(target, owner)
        if change is not None:
            self._overwritten(change, key)
            change.store(key)

    def before_remove(self, target: dict[Any, Any], key: Any, owner: Any = None) -> None:
        """Saves a dictionary before one present entry is deleted."""
        self.mutations += 1
        if owner is None and not is_constant(key):
            self.before_change(target)
        change = self._begin_entry(target, owner)
        if change is not None:
            self._overwritten(change, key)
            if is_constant(key) and not change.decided(key):  # else all contents are guarded
                self.provenance.guard(GuardKind.HAS, self.provenance.source_of(target), key)  # type: ignore[arg-type]
            change.remove(key)

    def _overwritten(self, change: Change, key: Any) -> None:
        if is_constant(key) and key in change.before and not change.decided(key):
            self.tracer.finalization.overwritten(change.obj, [change.before[key]])

    def before_item(self, target: list[Any], index: int) -> None:
        """Saves a list before an item that it has is replaced; guards the list's length only."""
        if self.provenance.source_of(target) is None:
            self.mutations += 1
            return
        known = self.effects.peek(target)
        if known is not None and (known.all_contents or known.added):
            self.before_change(target, moves=False)
            return
        self.mutations += 1
        self.tracer.reads.note_change(target)
        size = self.tracer.reads.length(target)
        self._begin(target).store(index % size)

    def before_append(self, target: Any, values: Sequence[Any]) -> None:
        """Saves a list, deque or set before values are added; its contents are not read."""
        self.mutations += 1
        self.tracer.reads.note_change(target, values)
        if self.provenance.source_of(target) is not None:
            change = self._begin(target)
            change.moved = True
            if not change.all_contents:
                change.added.extend(values)

    def before_attribute(self, obj: Any, where: Any) -> Change | None:
        """Saves one slot (where: its descriptor) or class attribute (where: its name) before it is
        set."""
        self.mutations += 1
        if isinstance(obj, type):
            self.provenance.constant(obj)
        elif self.provenance.source_of(obj) is None:
            return None
        known = self.effects.attribute(obj, where)
        change = known or self.effects.begin_attribute(obj, where)
        if known is None:
            self.tracer.finalization.overwritten(obj, [change.before])
        return change

    def realize(self, change: Change) -> None:
        """Guards the whole old contents of a changed object: the trace reads all of it. If they
        cannot be guarded, the trace still knows only what it has added, set and removed."""
        change.all_contents = True
        try:
            self._guard_contents(change)
        except BaseException:
            change.all_contents = False
            raise

    def _guard_contents(self, change: Change) -> None:
        source = self.provenance.source_of(change.obj)
        if source is None or change.kind not in _CONTAINERS:
            return
        before = change.before
        if isinstance(before, dict):
            self.tracer.reads.guard_keys(change.obj, source, list(before))
            for position, (key, value) in enumerate(before.items()):
                if key in change.written or key in change.removed:
                    continue
                if is_literal(key):
                    self.provenance.item(change.obj, key, value, SourceKind.KEY)
                else:
                    nth = self.provenance.sources.make(source, SourceKind.NTH_VALUE, position)
                    self.provenance.read_varying(value, nth)
        elif change.kind is set:
            self.tracer.reads.guard_members(source, before)
        else:
            self.tracer.reads.guard_length(change.obj, source, len(before))
            for i, value in enumerate(before):
                if i not in change.written:
                    self.provenance.item(change.obj, i, value)
