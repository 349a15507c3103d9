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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.execution.entry.joined_tensor_guards import TensorCheck, has_fast_answer, joined
from tracer_core.execution.entry.namespace import alias_groups
from tracer_core.fx_capture.object_mutations import Change
from tracer_core.fx_capture.provenance import Provenance
from tracer_core.guards.direct_roots import DIRECT_ROOTS
from tracer_core.guards.guard import Guard, GuardKind, Relation, literal
from tracer_core.guards.object_layout import HEAP_TYPE, flags
from tracer_core.guards.object_lifetime import end_is_seen
from tracer_core.guards.own_reference import Mortal, held, object_of, refers_weakly
from tracer_core.guards.source import Source, SourceKind, SourceTrait, computed
from tracer_core.guards.tensor_guard import tensor_call
from tracer_core.guards.watched_fields import Checked
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
_FAILURES = "(KeyError, IndexError, AttributeError, TypeError, ValueError, ArithmeticError)"
#: The integers of which Python has one object each.
_MIN_CACHED_INT, _MAX_CACHED_INT = -5, 256
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
        if not _has_identity(obj):
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


def _has_identity(obj: Any) -> bool:
    """Returns whether an object that equals a constant may be another object than it."""
    kind = type(obj)
    if kind is int:
        return not _MIN_CACHED_INT <= obj <= _MAX_CACHED_INT
    if kind is str:  # the compiler interns identifiers
        return len(obj) > 1 and not (
            obj.isascii() and obj.isidentifier() and sys.intern(obj) is obj
        )
    return kind in (float, complex) or (kind in (bytes, tuple, frozenset) and len(obj) > 0)


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
        self.object_lines: list[str] = []
        self.direct_lines: list[str] = []
        #: What is fetched and checked on every call, after the objects.
        self.late_lines: list[str] = []
        #: Position in the state of a tensor that the C helper can watch -> lines of its guard.
        self.tensor_lines: dict[int, tuple[str, str]] = {}
        #: Checks beside the guards of the trace.
        self.others: list[Guard | Relation] = []
        self.body: list[str] = []
        #: name in the run part -> text of the fetched or derived value that the check part returns.
        self.fetched: dict[str, str] = {}
        #: field of `Checked` -> texts of its elements.
        self.watched: dict[str, dict[str, None]] = {field.name: {} for field in fields(Checked)}
        #: variable of a dictionary -> text of each key read in it; None: the keys themselves
        #: matter.
        self.keys_read: dict[str, dict[str, None] | None] = {}
        self.roots: dict[int, None] = {}
        self._variables: dict[Source, str] = {}
        self._late: dict[Source, bool] = {}
        self._object_roots: dict[Source, bool] = {}

    # -- fetching --

    def is_object(self, source: Source) -> bool:
        """Returns whether a source belongs to the part under the fast-path guard: it starts at an
        object, a module or a constant."""
        return not self.is_late(source) and self._starts_at_object(source)

    def _starts_at_object(self, source: Source) -> bool:
        root = source.root
        if not source.starts_in_state:
            return True
        known = self._object_roots.get(root)
        if known is None:  # once: a weak reference to the value may come or go meanwhile
            known = self._object_roots[root] = self._is_object_root(self.state[root.key[0]])
        return known

    @staticmethod
    def _is_object_root(value: Any) -> bool:
        if type(value) in weakref.ProxyTypes:
            return False
        if isinstance(value, (types.BuiltinFunctionType, types.MethodType)):
            value = value.__self__  # the bound method is new at each access; its receiver counts
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
            lines = self.object_lines if self.is_object(source) else self.direct_lines
            lines.append(f"{name} = {text}")
            if source.base is None and self.is_object(source):
                self.roots[source.key[0]] = None
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
            return computed(base, source.key, fetch=fetch)
        return source.text(base)

    def use(self, source: Source) -> str:
        """Fetches a source for the run part."""
        name = self.fetch(source)
        if source.kind is SourceKind.STATE:
            return source.text("")  # not through the guard cache, which would keep the value alive
        if self.is_object(source) and source in self._variables:
            self.fetched[name] = name
        return name

    def graph_inputs(self, sources: list[Source]) -> tuple[list[str], str]:
        """Returns (lines, text) of the list of a graph's inputs. Inputs under the fast-path guard
        are put into a list once."""
        cached = [source.base is not None and self.is_object(source) for source in sources]
        if sum(cached) < 4:
            return [], f"[{', '.join(map(self.use, sources))}]"
        texts = [
            self.fetch(s) if known else "None" for s, known in zip(sources, cached, strict=True)
        ]
        self.fetched["G"] = f"[{', '.join(texts)}]"
        lines = [
            f"G[{i}] = {self.use(source)}"
            for i, (source, known) in enumerate(zip(sources, cached, strict=True))
            if not known
        ]
        return ["G = G.copy()", *lines], "G"

    def check_memory(self, pointers: dict[Source, int]) -> None:
        """Guards which of these tensors share memory. pointers: source -> pointer to its memory
        now."""
        own = {
            item: at
            for item, at in pointers.items()
            if item.base is not None and self.is_object(item)
        }
        direct = {item: at for item, at in pointers.items() if item not in own}
        if len(own) < 4 or not set(own.values()).isdisjoint(direct.values()):
            self.check_late(_same_groups(pointers))
            return
        self.watched["storages"].update(dict.fromkeys(map(self.fetch, own)))
        self.object_lines.append(f"P = {_memories(map(self.fetch, own))}")
        self.object_lines.append(
            f"if alias_groups(P) != {alias_groups([*own.values()])!r}: return None"
        )
        self.others.append(_same_groups(own))
        if direct:
            self.fetched["P"] = "frozenset(P)"
            texts = _places([*own, *direct])
            apart = (
                f"set({_memories(texts[: len(own)])}).isdisjoint({_memories(texts[len(own) :])})"
            )
            groups = alias_groups([*direct.values()])
            now = f"hold_apart(P, {_tuple_text(map(self.use, direct))}, {groups!r})"
            self.check_late(Relation(apart, (*own, *direct)), now)
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
            name = f"N{len(self.fetched)}"
            self.fetched[name] = _tuple_text(map(self.fetch, counters))
            self.check_late(condition, f"counters_are_equal({name})")
        else:
            self.check_late(condition)

    def check_distinct(self, sources: list[Source]) -> None:
        """Guards that no two of these sources lead to one object."""
        if len(sources) < 2:
            return
        condition = Relation(f"are_distinct(({', '.join(_places(sources))}))", tuple(sources))
        if all(self.is_object(source) for source in sources):
            self.object_lines.append(f"if not ({condition.text(self.fetch)}): return None")
            self.others.append(condition)
        else:
            self.check_late(condition)

    def _note_read(self, source: Source, base: str, name: str) -> None:
        """Registers what the fast-path guard must watch so that this read would give the same
        value."""
        if not self.is_object(source) or source.base is None:
            return
        if source.kind is SourceKind.DICT:
            self.watched["holders"][f"({base}, {name})"] = None
        elif source.kind in (SourceKind.KEY, SourceKind.OWN_KEY):
            self._reads_key(base, source.key)
        elif source.kind in (SourceKind.NTH_KEY, SourceKind.NTH_VALUE):
            self.keys_read[base] = None
        elif source.kind in (SourceKind.ITEM, SourceKind.OWN_ITEM):
            if not isinstance(self.provenance.value_at(source.base), tuple):
                self.watched["lists"][base] = None
        elif source.kind in (SourceKind.SLOT, SourceKind.CONTENTS):
            name = "cell_contents" if source.kind is SourceKind.CONTENTS else source.key
            owner = self.provenance.value_at(source.base)
            if name != "__globals__" and not isinstance(owner, _READ_ONLY):
                self.watched["probes"][f"partial(getattr, {base}, {name!r})"] = None
        elif source.kind is SourceKind.CALLED:
            self.watched["probes"][base] = None
        elif source.kind is SourceKind.APPLIED:
            function = self.constants.text(self.provenance.constants[source.key[0]])
            self.watched["probes"][f"partial({function}, {base})"] = None

    def _reads_key(self, name: str, key: Any) -> None:
        keys = self.keys_read.setdefault(name, {})
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
            self.object_lines.append(f"if not ({text}): return None")
        else:
            value = self.use(guard.source)
            text = guard.text(value, self.constants.text, self.use)
            line = f"if not ({text}): return MISS"
            self.late_lines.append(TensorCheck(line, value) if has_fast_answer(guard) else line)

    def check_apart(self, source: Source, other: Source) -> None:
        """Guards that two sources lead to different objects."""
        guard = Guard(GuardKind.NOT_SAME, source, other)
        self.guard(guard)
        self.others.append(guard)

    def check_late(self, condition: Relation, text: str = "") -> None:
        """Checks a condition on every call. text: of the check, where it uses values of the full
        check."""
        text = text or condition.text(self.use)
        self.late_lines.append(f"if not ({text}): return MISS")
        self.others.append(condition)

    def _has_fast_path(self, guard: Guard, value: str) -> bool:
        """Adds what the fast-path guard must watch for this guard; False if the guard has to be
        checked on every call."""
        kind = guard.kind
        if kind in (GuardKind.EQ, GuardKind.IS, GuardKind.SAME, GuardKind.NOT_SAME):
            return True
        if kind in _WATCHED:
            self.watched[_WATCHED[kind]][value] = None
            return True
        if kind in (GuardKind.HAS_NOT, GuardKind.HAS):
            self._reads_key(value, guard.expected)
            return True
        read = self.provenance.value_at(guard.source)
        if kind in (GuardKind.LEN, GuardKind.KEYS):
            if isinstance(read, dict) or (read is None and guard.source.kind is SourceKind.DICT):
                self.keys_read[value] = None
                return True
            if isinstance(read, list):
                self.watched["lengths" if kind is GuardKind.LEN else "lists"][value] = None
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
        lines += ["    try:", *(f"    {line}" for line in _tried(takes))]
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
        if self.object_lines:
            lines += ["def check(S):", *self.constants.revived("return None")]
            lines += _tried(self.object_lines, "return None")
            dicts = [
                f"({name}, {None if keys is None else _tuple_text(list(keys))})"
                for name, keys in self.keys_read.items()
            ]
            inputs: dict[str, Collection[str]] = {**self.watched}
            written = {self._variables.get(item) for item in self.written}
            moving = [name for name in self.keys_read if name in written]
            inputs |= {"fetched": self.fetched.values(), "dicts": dicts, "moving": moving}
            texts = ", ".join(
                f"{k}={_tuple_text(values)}" for k, values in inputs.items() if values
            )
            lines += [f"    return Checked({texts})", ""]
        if self.tensor_lines:
            positions = _tuple_text(map(str, self.tensor_lines))
            lines += [f"tensors_hold, tensors_learn = watch_tensors({positions})"]
        late = self.late_lines
        if late:
            helpers, late = joined(late)
            lines += helpers
        name = "entered" if locks else "entry"
        lines += [f"def {name}(S):", *self.constants.revived("return MISS")]
        lines += [f"    if not ({' and '.join(settings)}): return MISS"]
        if self.tensor_lines:
            checks = _tried([line for both in self.tensor_lines.values() for line in both])
            lines += ["    if not tensors_hold(S):", *(f"    {line}" for line in checks)]
            lines += ["        tensors_learn(S)"]
        if self.direct_lines:
            lines += _tried(self.direct_lines)
        if self.object_lines:
            lines += ["    F = guard_cache.fetch(S)", "    if F is None: return MISS"]
            if self.fetched:
                lines += [f"    {_tuple_text(self.fetched)} = F"]
        if late:
            lines += _tried(late)
        lines += [f"    {line}" for line in self.body]
        return "\n".join(lines) + "\n"


#: Kind of a guard -> the field of `Checked` that holds the operands of the comparison.
_WATCHED = {
    GuardKind.TYPE: "objects",
    GuardKind.MRO: "classes",
    GuardKind.TENSOR: "tensors",
    GuardKind.EMPTY: "empties",
}


def _tried(lines: Sequence[str], otherwise: str = "return MISS") -> list[str]:
    """Returns the body of a function that runs these lines, and this statement if they fail."""
    body = [f"        {line}" for line in lines]
    return ["    try:", *body, f"    except {_FAILURES}: {otherwise}"]


def _tuple_text(names: Iterable[str]) -> str:
    inside = ", ".join(names)
    return f"({inside},)" if inside else "()"


def _places(sources: Collection[Source]) -> list[str]:
    """Returns the placeholders of the values of `sources` in the template of a `Relation`."""
    return [f"{{{i}}}" for i in range(len(sources))]


def _memories(tensors: Iterable[str]) -> str:
    """Returns the text of a list of the tensors' storage addresses."""
    return f"memories({_tuple_text(tensors)})"


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
