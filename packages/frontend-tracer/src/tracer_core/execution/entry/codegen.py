"""Generates the Python text of one cache entry of a code region.

In: a finished trace: guards, graph inputs and outputs, side effects, the value or the suspended
frames. Out: source text with two functions, ``check(S)`` (the full check of objects) and
``cache entry(S)`` (guards, graph, effects, result), and the namespace it runs in. All fetches come
before the graph and before any side effect. The text depends only on S, its constants and imported
modules.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.execution.entry.joined_tensor_guards import TensorCheck, has_fast_answer, joined
from tracer_core.execution.entry.namespace import alias_groups
from tracer_core.execution.entry.object_part import (
    ObjectPart,
    arranged,
    check,
    guard_cache,
    tried,
    tuple_text,
)
from tracer_core.fx_capture.object_mutations import Change
from tracer_core.fx_capture.provenance import Provenance
from tracer_core.guards.direct_roots import DIRECT_ROOTS
from tracer_core.guards.guard import Guard, GuardKind, Relation, literal
from tracer_core.guards.object_layout import HEAP_TYPE, flags
from tracer_core.guards.object_lifetime import end_is_seen
from tracer_core.guards.own_reference import Mortal, held, object_of, refers_weakly
from tracer_core.guards.source import Source, SourceKind, SourceTrait, computed
from tracer_core.guards.tensor_guard import tensor_call
from tracer_core.guards.value_kinds import may_be_one_of_several
from tracer_core.reconstruct.replay_change import replay
from tracer_core.reconstruct.values import Rebuilder
from tracer_core.torch_private.needed import AD_LEVEL

#: Owners whose slots never change.
_READ_ONLY = (
    types.CodeType,
    types.MethodType,
    partial,
    property,
    slice,
    range,
    staticmethod,
    classmethod,
)
#: Steps of a path at whose end an object may be the root of a part.
_TO_ROOTS = frozenset({
    SourceKind.KEY, SourceKind.OWN_KEY, SourceKind.ITEM, SourceKind.OWN_ITEM, SourceKind.SLOT,
    SourceKind.CONTENTS,
})  # fmt: skip
#: Objects that must differ from another one, from which on one set has their identities.
_MIN_APART = 4
_LITERALS = (type(None), bool, int, str, bytes, type(Ellipsis))


@dataclass(slots=True)
class Constants:
    """Names of objects in generated code. Mutable. is_elsewhere(object): whether the program
    has it, not only the trace. namespace: of the generated module. mortal: names of
    objects that the generated functions refer to weakly."""

    is_elsewhere: Callable[[Any], bool]
    namespace: dict[str, Any] = field(default_factory=dict)
    mortal: dict[str, Mortal] = field(default_factory=dict)
    #: Names of objects that must be these very ones.
    exact: set[str] = field(default_factory=set)
    _names: dict[Any, str] = field(default_factory=dict)

    def text(self, obj: Any) -> str:
        """Returns text that evaluates to `obj` in the generated functions."""
        if type(obj) is Mortal:
            obj = obj.reference()
            if obj is None:
                return "MISS"  # which no value of the program is
        if type(obj) is int:
            return literal(obj)
        if type(obj) in _LITERALS:
            return repr(obj)
        if type(obj) is float and obj == obj and abs(obj) != float("inf"):
            return repr(obj)
        if type(obj) is tuple:
            inside = ", ".join(map(self.text, obj))
            return f"({inside},)" if obj else "()"
        by_value = isinstance(obj, (torch.device, torch.dtype))
        return self._name((type(obj), obj) if by_value else id(obj), obj)

    def identical(self, obj: Any) -> str:
        """Returns text that evaluates to this very object: the program may ask whether it is."""
        if not may_be_one_of_several(obj):
            return self.text(obj)
        name = self._name(id(obj), obj)
        self.exact.add(name)
        return name

    def _name(self, handle: Any, obj: Any) -> str:
        name = self._names.get(handle)
        if name is None or (name in self.mortal and object_of(self.mortal[name]) is not obj):
            name = self._names[handle] = f"c{len(self.namespace)}"
            result = held(obj) if self.is_elsewhere(obj) else obj
            if type(result) is Mortal:
                self.mortal[name] = result
                self.namespace[f"{name}_alive"] = result.reference
            else:
                self.namespace[name] = obj
        return name

    def alive(self) -> dict[str, Any]:
        """Returns the objects by name; None in place of one that died."""
        mortal = {name: object_of(item) for name, item in self.mortal.items()}
        return {**self.namespace, **mortal}

    def revived(self, otherwise: str) -> list[str]:
        """Returns the lines that begin a generated function. otherwise: what it does if an object
        died: an object at its address would be another."""
        lines = [f"    {name} = {name}_alive()" for name in self.mortal]
        dead = " or ".join(f"{name} is None" for name in self.mortal)
        return [*lines, f"    if {dead}: {otherwise}"] if lines else []


class CacheEntry:
    """Builds the text of an entry. Mutable. value_at(source): the value that the trace read there.
    root(i): the value of state item i."""

    def __init__(self, provenance: Provenance, state: Any) -> None:
        self.provenance = provenance
        self.state = state
        #: Where the program puts another tensor in each call, such as the keys of a cache: fetched
        #: late, so that the fast-path guard holds for the rest.
        self.replaced: frozenset[Source] = frozenset()
        #: Dictionaries that the entry writes to.
        self.written: frozenset[Source] = frozenset()
        self.constants = Constants(lambda obj: provenance.source_of(obj) is not None)
        #: Root -> what is checked of it and of what it leads to, under one fast-path guard; None:
        #: of modules and constants. Several roots may have one part.
        self._parts: dict[Source | None, ObjectPart] = {}
        self.direct_lines: list[str] = []
        #: What is fetched and checked on every call, after the objects.
        self.late_lines: list[str] = []
        #: Position in the state of a tensor that the C helper can watch -> lines of its guard.
        self.tensor_lines: dict[int, tuple[str, str]] = {}
        #: Checks beside the guards of the trace.
        self.others: list[Guard | Relation] = []
        self.body: list[str] = []
        #: For each part with a fast-path guard, the places of its roots in the state (`text`).
        self.roots: list[list[int]] = []
        self._variables: dict[Source, str] = {}
        self._late: dict[Source, bool] = {}
        #: Source -> the root on its path.
        self._root_of: dict[Source, Source | None] = {}

    # -- fetching --

    def is_object(self, source: Source) -> bool:
        """Returns whether a source belongs to a part under a fast-path guard: it starts at a module
        or a constant, or leads through an object."""
        return not self.is_late(source) and self._starts_at_object(source)

    def _starts_at_object(self, source: Source) -> bool:
        return not source.starts_in_state or self._root(source) is not None

    def _root(self, source: Source) -> Source | None:
        """Returns the first object with an identity on a path from the state."""
        if (
            source not in self._root_of
        ):  # once: a weak reference to the value may come or go meanwhile
            base, root = source.base, None
            if base is None:
                root = source if self._is_object_root(self.state[source.key[0]]) else None
            else:
                root = self._root(base)
                if root is None and source.kind in _TO_ROOTS:
                    is_root = self._is_object_root(self.provenance.value_at(source))
                    root = source if is_root else None
            self._root_of[source] = root
        return self._root_of[source]

    def _part(self, *sources: Source) -> ObjectPart:
        """Returns the part that these sources belong to: one, from now on."""
        roots = [self._root(item) if item.starts_in_state else None for item in sources]
        part = self._parts.get(roots[0])
        if part is None:
            part = self._parts[roots[0]] = ObjectPart()
        for root in roots[1:]:
            other = self._parts.setdefault(root, part)
            if other is not part:
                part.merge(other)
                self._parts.update({k: part for k, v in self._parts.items() if v is other})
        return part

    @staticmethod
    def _is_object_root(value: Any) -> bool:
        if type(value) in weakref.ProxyTypes:
            return False
        if type(value) is types.MethodType:
            return False  # new at each access; its receiver is the root
        if isinstance(value, types.BuiltinFunctionType):
            value = value.__self__
            return isinstance(value, types.ModuleType) or not isinstance(value, DIRECT_ROOTS)
        if isinstance(value, DIRECT_ROOTS) or end_is_seen(value):
            return False  # what the guard cache remembers must not outlive the call
        # It keeps alive what it cannot refer to weakly, which a built-in object (a weak reference,
        # a view) is not worth.
        return refers_weakly(value) or bool(flags(type(value)) & HEAP_TYPE)

    def is_late(self, source: Source) -> bool:
        """Returns whether a source is fetched on every call: it goes through a weak reference or a
        gradient (nothing may keep the value alive), is a varying number, is replaced by the
        program, or is computed from sources of different parts."""
        provenance = self.provenance
        if source.base is None or not (
            provenance.follows_late or provenance.combines or provenance.symbols or self.replaced
        ):
            return False
        known = self._late.get(source)
        if known is None:
            known = self._late[source] = self._comes_late(source, source.base)
        return known

    def _comes_late(self, source: Source, base: Source) -> bool:
        volatile = SourceTrait.VOLATILE in source.kind.traits
        if volatile or source in self.replaced or self.is_late(base):
            return True
        if source in self._varying and self._starts_at_object(source):
            return True
        if source.kind is SourceKind.COMPUTED and isinstance(source.key, tuple):
            parts = (base, *source.key[1])
            return len({self.is_object(part) for part in parts}) > 1 or any(
                map(self.is_late, parts)
            )
        return source.kind is SourceKind.CALLED and isinstance(
            self.provenance.value_at(base), weakref.ReferenceType
        )

    @functools.cached_property
    def _varying(self) -> set[Source]:
        """Returns the sources of symbolic scalars and of the tuples that hold them: a tuple is
        another object whenever its number changes."""
        sources: set[Source] = set()
        for source in self.provenance.symbols:
            step: Source | None = source
            while step is not None and step not in sources:
                sources.add(step)
                base = step.base
                step = base if base and isinstance(self.provenance.value_at(base), tuple) else None
        return sources

    def fetch(self, source: Source) -> str:
        """Returns the variable that holds a source's value; emits its fetch once, in the source's
        part."""
        known = self._variables.get(source)
        if known is not None:
            return known
        if source.kind is SourceKind.CONST:
            return self.constants.text(self.provenance.constants[source.key[0]])
        if source.kind is SourceKind.MODULE:
            return self.constants.text(sys.modules[source.key])
        if self.is_late(source):
            assert source.base is not None
            text = self._fetch_text(source, self.use(source.base))
            name = f"v{len(self._variables)}"
            self.late_lines.append(f"{name} = {text}")
            self.others.append(Relation("{0} is not MISS", (source,)))
        else:
            base = self.fetch(source.base) if source.base is not None else ""
            text = self._fetch_text(source, base)
            name = f"v{len(self._variables)}"
            if not self.is_object(source):
                self.direct_lines.append(f"{name} = {text}")
            elif source.starts_in_state and self._root(source) is source:
                self._part(source).roots[source] = name
                if source.base is not None:
                    self.direct_lines.append(f"{name} = {text}")
            else:
                self._part(source).statements.append((f"{name} = {text}", False))
                self._note_read(source, base, name)
        self._variables[source] = name
        return name

    def variable(self, source: Source) -> str | None:
        """Returns the variable that holds a source's value, if it is fetched."""
        return self._variables.get(source)

    def fetched_sources(self) -> frozenset[Source]:
        """Returns the sources whose values are fetched so far."""
        return frozenset(self._variables)

    def _fetch_text(self, source: Source, base: str) -> str:
        if source.kind is SourceKind.APPLIED:
            return f"{self.constants.text(self.provenance.constants[source.key[0]])}({base})"
        if source.kind is SourceKind.READING:
            function, others = source.key
            return f"reading({function!r})({', '.join([base, *map(self.use, others)])})"
        if source.kind is SourceKind.COMPUTED:
            fetch = self.use if self.is_late(source) else self.fetch
            if isinstance(source.key, tuple) and self.is_object(source):
                self._part(source, *source.key[1])
            return computed(base, source.key, fetch=fetch)
        return source.text(base)

    def use(self, source: Source) -> str:
        """Fetches a source for the run part."""
        name = self.fetch(source)
        if source.kind is SourceKind.STATE:
            return source.text("")  # not through the guard cache, which would keep the value alive
        is_root = source.starts_in_state and self._root(source) is source
        if not is_root and self.is_object(source) and source in self._variables:
            self._part(source).fetched[name] = name
        return name

    def graph_inputs(self, sources: list[Source]) -> tuple[list[str], str]:
        """Returns (lines, text) of the list of a graph's inputs. Inputs under one fast-path guard
        are put into a list once."""
        counts: Counter[ObjectPart] = Counter(
            self._part(source)
            for source in sources
            if source.base is not None and self.is_object(source)
        )
        if not counts or max(counts.values()) < 4:
            return [], f"[{', '.join(map(self.use, sources))}]"
        ((part, _),) = counts.most_common(1)
        cached = [
            item.base is not None and self.is_object(item) and self._part(item) is part
            for item in sources
        ]
        texts = [
            self.fetch(s) if known else "None" for s, known in zip(sources, cached, strict=True)
        ]
        part.fetched["G"] = f"[{', '.join(texts)}]"
        lines = [
            f"G[{i}] = {self.use(source)}"
            for i, (source, known) in enumerate(zip(sources, cached, strict=True))
            if not known
        ]
        return ["G = G.copy()", *lines], "G"

    def check_memory(self, pointers: dict[Source, int]) -> None:
        """Guards which of these tensors share memory. pointers: source -> pointer to its memory
        now."""
        by_part: dict[ObjectPart | None, dict[Source, int]] = {}
        for item, at in pointers.items():
            owned = item.base is not None and self.is_object(item)
            by_part.setdefault(self._part(item) if owned else None, {})[item] = at
        users = Counter(at for items in by_part.values() for at in set(items.values()))
        direct: dict[Source, int] = {}
        sets: dict[str, dict[Source, int]] = {}
        for part, own in by_part.items():
            if part is None or len(own) < 4 or any(users[at] > 1 for at in own.values()):
                direct |= own
                continue
            name = f"P{len(sets)}"
            part.watched["storages"].update(dict.fromkeys(map(self.fetch, own)))
            part.statements.append((f"{name} = {_memories(map(self.fetch, own))}", False))
            groups = alias_groups([*own.values()])
            part.statements.append((f"alias_groups({name}) == {groups!r}", True))
            part.fetched[name] = f"frozenset({name})"
            self.others.append(_same_groups(own))
            for other, items in sets.items():
                self.check_late(_apart(items, own), f"{other}.isdisjoint({name})")
            sets[name] = own
        if not sets:
            self.check_late(_same_groups(pointers))
        elif direct:
            groups = alias_groups([*direct.values()])
            uses = tuple_text([*map(self.use, direct)])
            now = f"hold_apart({tuple_text([*sets])}, {uses}, {groups!r})"
            others = [item for own in sets.values() for item in own]
            self.check_late(_apart(others, direct), now)
            self.others.append(_same_groups(direct))

    def check_alike(self, sources: Sequence[Source]) -> None:
        """Guards that the numbers at these sources are equal: the graph has one input for all. The
        values of step counters are read from a tuple of their tensors, fetched with the objects."""
        counters = [
            source.base
            for source in sources
            if source.kind is SourceKind.NUMBER and source.base is not None
        ]
        places = ", ".join(_places(sources))
        if len(counters) < len(sources):
            self.check_late(Relation(f"are_equal(({places}))", tuple(sources)))
            return
        condition = Relation(f"counters_are_equal(({places}))", tuple(counters))
        if all(map(self.is_object, counters)):
            part = self._part(*counters)
            name = f"N{len(self.others)}"
            part.fetched[name] = tuple_text([*map(self.fetch, counters)])
            self.check_late(condition, f"counters_are_equal({name})")
        else:
            self.check_late(condition)

    def check_distinct(self, sources: list[Source]) -> None:
        """Guards that no two of these sources lead to one object."""
        if len(sources) < 2:
            return
        condition = Relation(f"are_distinct(({', '.join(_places(sources))}))", tuple(sources))
        if all(self.is_object(source) for source in sources):
            self._part(*sources).statements.append((condition.text(self.fetch), True))
            self.others.append(condition)
        else:
            self.check_late(condition)

    def _note_read(self, source: Source, base: str, name: str) -> None:
        """Registers what the fast-path guard must watch so that this read would give the same
        value."""
        if source.base is None:
            return
        watched = self._part(source).watched
        if source.kind is SourceKind.DICT:
            watched["holders"][f"({base}, {name})"] = None
        elif source.kind in (SourceKind.KEY, SourceKind.OWN_KEY):
            self._reads_key(source, base, source.key)
        elif source.kind in (SourceKind.NTH_KEY, SourceKind.NTH_VALUE):
            self._part(source).keys_read[base] = None
        elif source.kind in (SourceKind.ITEM, SourceKind.OWN_ITEM):
            if not isinstance(self.provenance.value_at(source.base), tuple):
                watched["lists"][base] = None
        elif source.kind in (SourceKind.SLOT, SourceKind.CONTENTS):
            name = "cell_contents" if source.kind is SourceKind.CONTENTS else source.key
            owner = self.provenance.value_at(source.base)
            if name != "__globals__" and not isinstance(owner, _READ_ONLY):
                watched["probes"][f"partial(getattr, {base}, {name!r})"] = None
        elif source.kind is SourceKind.CALLED:
            watched["probes"][base] = None
        elif source.kind is SourceKind.APPLIED:
            function = self.constants.text(self.provenance.constants[source.key[0]])
            watched["probes"][f"partial({function}, {base})"] = None

    def _reads_key(self, source: Source, name: str, key: Any) -> None:
        keys = self._part(source).keys_read.setdefault(name, {})
        if keys is not None:
            keys[self.constants.text(key)] = None

    # -- guards --

    def guard(self, guard: Guard) -> None:
        value = self.fetch(guard.source)
        text = guard.text(value, self.constants.text, self.fetch)
        others = [guard.expected] if guard.kind in (GuardKind.SAME, GuardKind.NOT_SAME) else []
        cached = [self.is_object(s) for s in (guard.source, *others)]
        if has_fast_answer(guard) and guard.source.kind is SourceKind.STATE:
            at = guard.source.key[0]
            text = guard.text(f"t{at}", self.constants.text, self.fetch)
            self.tensor_lines[at] = f"t{at} = S[{at}]", f"if not ({text}): return MISS"
        elif not any(cached) and not any(self.is_late(s) for s in (guard.source, *others)):
            self.direct_lines.append(f"if not ({text}): return MISS")
        elif all(cached) and self._has_fast_path(guard, value):
            if guard.kind is GuardKind.TENSOR:
                text = tensor_call(guard.expected, value, self.constants.text) or text
            self._part(guard.source, *others).statements.append((text, True))
        else:
            value = self.use(guard.source)
            text = guard.text(value, self.constants.text, self.use)
            line = f"if not ({text}): return MISS"
            self.late_lines.append(TensorCheck(line, value) if has_fast_answer(guard) else line)

    def check_apart(self, source: Source, others: Sequence[Source]) -> None:
        """Guards that a source and others lead to different objects. The identities of many objects
        under one fast-path guard are compared at once: they live as long as it holds."""
        by_part: dict[ObjectPart, list[Source]] = {}
        for other in others:
            guard = Guard(GuardKind.NOT_SAME, source, other)
            self.others.append(guard)
            if self.is_object(other):
                by_part.setdefault(self._part(other), []).append(other)
            else:
                self.guard(guard)
        own = self._part(source) if self.is_object(source) else None
        for part, items in by_part.items():
            if part is own or len(items) < _MIN_APART:
                for other in items:
                    self.guard(Guard(GuardKind.NOT_SAME, source, other))
                continue
            name = f"A{len(self.others)}_{len(part.fetched)}"
            part.fetched[name] = f"frozenset(map(id, {tuple_text([*map(self.fetch, items)])}))"
            self.late_lines.append(f"if id({self.use(source)}) in {name}: return MISS")

    def check_late(self, condition: Relation, text: str = "") -> None:
        """Checks a condition on every call. text: of the check, where it uses values of the full
        check."""
        text = text or condition.text(self.use)
        self.late_lines.append(f"if not ({text}): return MISS")
        self.others.append(condition)

    def _has_fast_path(self, guard: Guard, value: str) -> bool:
        """Adds what the fast-path guard must watch for this guard; False if the guard has to be
        checked on every call."""
        kind, part = guard.kind, self._part(guard.source)
        if kind in (GuardKind.EQ, GuardKind.IS, GuardKind.SAME, GuardKind.NOT_SAME):
            return True
        if kind in _WATCHED:
            part.watched[_WATCHED[kind]][value] = None
            return True
        if kind in (GuardKind.HAS_NOT, GuardKind.HAS):
            self._reads_key(guard.source, value, guard.expected)
            return True
        read = self.provenance.value_at(guard.source)
        if kind in (GuardKind.LEN, GuardKind.KEYS):
            if isinstance(read, dict) or (read is None and guard.source.kind is SourceKind.DICT):
                part.keys_read[value] = None
                return True
            if isinstance(read, list):
                part.watched["lengths" if kind is GuardKind.LEN else "lists"][value] = None
                return True
            return isinstance(read, tuple)
        return False

    # -- effects --

    def effect(self, rebuilder: Rebuilder, change: Change) -> list[str]:
        """Returns the lines that replay one object's change. Values are rebuilt through
        `rebuilder`."""
        source = self.provenance.source_of(change.obj)
        assert source is not None
        return replay(self.use(source), change, rebuilder)

    # -- assembly --

    def _locked(self, locks: Mapping[Source, type]) -> list[str]:
        """Returns the function that holds locks of the program round `entered`; where one is not
        free, nothing runs."""
        takes = [
            line
            for source, kind in locks.items()
            for line in (
                f"lock = {self._path(source)}",
                f"if type(lock) is not {self.constants.text(kind)}: return MISS",
                "if not lock.acquire(False): return MISS",
                "taken.append(lock)",
            )
        ]
        lines = ["def entry(S):", *self.constants.revived("return MISS"), "    taken = []"]
        lines += ["    try:", *(f"    {line}" for line in tried(takes))]
        lines += ["        return entered(S)", "    finally:"]
        return [*lines, "        for lock in reversed(taken): lock.release()", ""]

    def _path(self, source: Source) -> str:
        """Returns a source as one expression, for what is read before anything is guarded."""
        if source.kind is SourceKind.CONST:
            return self.constants.text(self.provenance.constants[source.key[0]])
        if source.kind is SourceKind.MODULE:
            return self.constants.text(sys.modules[source.key])
        return source.text("" if source.base is None else self._path(source.base))

    def text(self, settings: Iterable[str], locks: Mapping[Source, type]) -> str:
        lines: list[str] = self._locked(locks) if locks else []
        parts, inlined = arranged(dict.fromkeys(self._parts.values()))
        written = {self._variables.get(item) for item in self.written}
        #: Roots that are no values of the state: they follow these.
        derived = {
            source: name for part in parts for source, name in part.roots.items() if source.base
        }
        places = {source: len(self.state) + i for i, source in enumerate(derived)}
        for i, part in enumerate(parts):
            at = [places[root] if root.base else root.key[0] for root in part.roots]
            self.roots.append(at)
            lines += part.function(check(i), at, self.constants.revived("return None"), written)
        if self.tensor_lines:
            positions = tuple_text([*map(str, self.tensor_lines)])
            lines += [f"tensors_hold, tensors_learn = watch_tensors({positions})"]
        late = self.late_lines
        if late:
            helpers, late = joined(late)
            lines += helpers
        name = "entered" if locks else "entry"
        lines += [f"def {name}(S):", *self.constants.revived("return MISS")]
        lines += [f"    if not ({' and '.join(settings)}): return MISS"]
        if self.tensor_lines:
            checks = tried([line for both in self.tensor_lines.values() for line in both])
            lines += ["    if not tensors_hold(S):", *(f"    {line}" for line in checks)]
            lines += ["        tensors_learn(S)"]
        direct = [*self.direct_lines, *(line for p in inlined for line in p.lines("return MISS"))]
        direct += [f"{k} = {v}" for p in inlined for k, v in p.fetched.items() if k != v]
        if direct:
            lines += tried(direct)
        if derived:
            lines += [f"    R = (*S, {', '.join(derived.values())})"]
        for i, part in enumerate(parts):
            values = f"{guard_cache(i)}.fetch({'R' if derived else 'S'})"
            lines += [f"    F = {values}", "    if F is None: return MISS"]
            if part.fetched:
                lines += [f"    {tuple_text(part.fetched)} = F"]
        if late:
            lines += tried(late)
        lines += [f"    {line}" for line in self.body]
        return "\n".join(lines) + "\n"


#: Kind of a guard -> the field of `Checked` that holds the operands of the comparison.
_WATCHED = {
    GuardKind.TYPE: "objects",
    GuardKind.MRO: "classes",
    GuardKind.TENSOR: "tensors",
    GuardKind.EMPTY: "empties",
}


def _places(sources: Collection[Source]) -> list[str]:
    """Returns the placeholders of the values of `sources` in the template of a `Relation`."""
    return [f"{{{i}}}" for i in range(len(sources))]


def _memories(tensors: Iterable[str]) -> str:
    """Returns the text of a list of the tensors' storage addresses."""
    return f"memories({tuple_text([*tensors])})"


def _apart(sources: Collection[Source], others: Collection[Source]) -> Relation:
    """Guards that no tensor of one group shares memory with one of the other."""
    texts = _places([*sources, *others])
    own, rest = _memories(texts[: len(sources)]), _memories(texts[len(sources) :])
    return Relation(f"set({own}).isdisjoint({rest})", (*sources, *others))


def _same_groups(pointers: dict[Source, int]) -> Relation:
    """Guards that the tensors that share memory now still do. pointers: source -> pointer to its
    memory."""
    groups = alias_groups([*pointers.values()])
    return Relation(f"alias_groups({_memories(_places(pointers))}) == {groups!r}", tuple(pointers))


def settings_checks(
    state: torch_private.TorchState, constant: Callable[[Any], str]
) -> dict[str, tuple[str, Any]]:
    """Returns guards on torch's own settings, each with the text that reads the setting and its value.
    state: at the trace."""
    tangents = f"forward_ad[{AD_LEVEL!r}]"  # a graph computes no tangents
    dtype, devices = constant(state.default_dtype), state.devices
    checks: dict[str, tuple[str, Any]] = {
        f"is_grad_enabled() is {state.grad}": ("is_grad_enabled()", state.grad),
        f"is_inference_mode() is {state.inference}": ("is_inference_mode()", state.inference),
        f"default_dtype() is {dtype}": ("default_dtype()", state.default_dtype),
        f"function_modes() == {len(devices)}": ("function_modes()", len(devices)),
        f"dispatch_modes() == {state.dispatch_modes}": ("dispatch_modes()", state.dispatch_modes),
        f"deterministic() is {state.deterministic}": ("deterministic()", state.deterministic),
        f"{tangents} < 0": (tangents, -1),
        # torch.jit.trace would not see the kernels of a compiled graph
        "jit_tracing() is None": ("jit_tracing()", None),
    }
    if devices:
        checks[f"ambient_devices() == {constant(devices)}"] = ("ambient_devices()", devices)
    if state.autocast is None:
        checks["not autocast()"] = ("autocast()", False)
    else:
        text = f"autocast_state() == {constant(state.autocast)}"
        checks[text] = ("autocast_state()", state.autocast)
    return checks
