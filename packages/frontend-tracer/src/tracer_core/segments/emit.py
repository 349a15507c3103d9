"""The generated Python of one variant of a segment.

In: a finished trace: guards, graph inputs and outputs, effects, the value or the suspended frames. Out: source
text with two functions, ``check(S)`` (the full check of objects) and ``attempt(S)`` (guards, graph, effects,
result), and the namespace it runs in. What always holds: everything that is fetched is fetched before the graph
runs and before any effect; the text depends on nothing but S, its constants and imported modules.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tracer_core.effects import Change
from tracer_core.guards.guard import Guard, GuardKind, tensor_call
from tracer_core.interpreter.shells import STEPPED
from tracer_core.numpy_types import ARRAY
from tracer_core.provenance import Provenance, end_is_seen
from tracer_core.rebuild import Rebuilder
from tracer_core.segments.generated_calls import alias_groups
from tracer_core.segments.replay import replay
from tracer_core.source import Source, computed

#: Owners whose slots never change.
_READ_ONLY = (types.CodeType, types.MethodType, partial, property, slice, range, staticmethod, classmethod)
_FAILURES = "(KeyError, IndexError, AttributeError, TypeError, ValueError, ArithmeticError)"
_LITERALS = (type(None), bool, int, str, bytes, type(Ellipsis))
#: Roots of a state that are checked anew on every call.
DIRECT_ROOTS = (*ARRAY, list, tuple, dict, set, frozenset, torch.Tensor, types.FunctionType, types.CellType, *_LITERALS,
                 float, complex, torch.dtype, torch.device, types.GeneratorType, *STEPPED)  # fmt: skip


#: Steps of sources that no stamp can vouch for.
_CHANGING = frozenset({"grad", "number", "suspended", "suspended_value", "peeked"})


@dataclass(slots=True)
class Constants:
    """Mutable: names in the generated module's namespace, and how another process finds each object."""

    namespace: dict[str, Any] = field(default_factory=dict)
    _names: dict[Any, str] = field(default_factory=dict)

    def text(self, obj: Any) -> str:
        """Text that evaluates to `obj` in the generated module."""
        if type(obj) in _LITERALS:
            return repr(obj)
        if type(obj) is float and obj == obj and abs(obj) != float("inf"):
            return repr(obj)
        if type(obj) is tuple:
            inside = ", ".join(map(self.text, obj))
            return f"({inside},)" if obj else "()"
        handle: Any = (type(obj), obj) if isinstance(obj, (torch.device, torch.dtype)) else id(obj)
        name = self._names.get(handle)
        if name is None:
            name = self._names[handle] = f"c{len(self.namespace)}"
            self.namespace[name] = obj
        return name


class Variant:
    """Builds the text. Mutable. value_at(source): what was read there during the trace. root(i): the value
    of state item i."""

    def __init__(self, provenance: Provenance, state: Any) -> None:
        self.provenance = provenance
        self.state = state
        self.constants = Constants()
        self.object_lines: list[str] = []
        self.direct_lines: list[str] = []
        #: What is fetched and checked on every call, after the objects.
        self.late_lines: list[str] = []
        #: Position in the state of a tensor that the C helper can watch -> lines of its guard.
        self.tensor_lines: dict[int, tuple[str, str]] = {}
        #: All conditions beside the guards, over variables and state: what a failure is explained with.
        self.explained: list[str] = []
        self.body: list[str] = []
        self.fetched: dict[str, None] = {}
        #: name in the run part -> text of what the check makes for it from what it fetched.
        self.prepared: dict[str, str] = {}
        self.parts: dict[str, dict[str, None]] = {
            name: {}
            for name in ("holders", "objects", "classes", "empties", "tensors", "lists", "probes", "storages",
                         "lengths")
        }
        #: variable of a dictionary -> text of each key read in it, or None: its keys themselves matter.
        self.keys_read: dict[str, dict[str, None] | None] = {}
        self.roots: dict[int, None] = {}
        self._variables: dict[Source, str] = {}
        self._late: dict[Source, bool] = {}

    # -- fetching --

    def is_object(self, source: Source) -> bool:
        """Whether a source belongs to the stamped part: it starts at an object, a module or a constant."""
        return not self.is_late(source) and self._starts_at_object(source)

    def _starts_at_object(self, source: Source) -> bool:
        root = source.root
        if root.kind != "state":
            return True
        value = self.state[root.key[0]]
        if isinstance(value, (types.BuiltinFunctionType, types.MethodType)):
            value = value.__self__  # made anew at each access: what it is bound to counts
            return isinstance(value, types.ModuleType) or not isinstance(value, DIRECT_ROOTS)
        # What a stamp remembers must not outlive the call.
        return not isinstance(value, DIRECT_ROOTS) and not end_is_seen(value)

    def is_late(self, source: Source) -> bool:
        """Whether a source goes through a weak reference or a gradient, or is a number that changes: it is
        fetched on every call, so that nothing holds it; or is computed from what is in different parts."""
        provenance = self.provenance
        if source.base is None or not (provenance.follows_late or provenance.combines or provenance.symbols):
            return False
        known = self._late.get(source)
        if known is None:
            known = self._late[source] = self._comes_late(source, source.base)
        return known

    def _comes_late(self, source: Source, base: Source) -> bool:
        if source.kind in _CHANGING or self.is_late(base):
            return True
        if source in self._varying and self._starts_at_object(source):
            return True
        if source.kind == "computed" and isinstance(source.key, tuple):
            parts = (base, *source.key[1])
            return len({self.is_object(part) for part in parts}) > 1 or any(map(self.is_late, parts))
        return source.kind == "called" and isinstance(self.provenance.value_at(base), weakref.ReferenceType)

    @functools.cached_property
    def _varying(self) -> set[Source]:
        """The sources of numbers that change, and of the tuples that hold them: other objects whenever they
        do."""
        found: set[Source] = set()
        for source in self.provenance.symbols:
            step: Source | None = source
            while step is not None and step not in found:
                found.add(step)
                base = step.base
                step = base if base and isinstance(self.provenance.value_at(base), tuple) else None
        return found

    def fetch(self, source: Source) -> str:
        """The variable that holds a source's value; emits its fetch once, in the part it belongs to."""
        known = self._variables.get(source)
        if known is not None:
            return known
        if source.kind == "const":
            name = self.constants.text(self.provenance.constants[source.key[0]])
        elif source.base is None and source.kind == "module":
            name = self.constants.text(sys.modules[source.key])
        elif self.is_late(source):
            assert source.base is not None
            text = self._fetch_text(source, self.use(source.base))
            name = f"v{len(self._variables)}"
            self.late_lines.append(f"{name} = {text}")
            self.explained.append(f"reached(lambda: {text}) is not MISS")
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

    def _fetch_text(self, source: Source, base: str) -> str:
        if source.kind == "applied":
            return f"{self.constants.text(self.provenance.constants[source.key[0]])}({base})"
        if source.kind == "computed":
            return computed(base, source.key, fetch=self.use if self.is_late(source) else self.fetch)
        return source.text(base)

    def use(self, source: Source) -> str:
        """`fetch` for the run part."""
        name = self.fetch(source)
        if source.base is None and source.kind == "state":
            return source.text("")  # not from a stamp, which would keep it alive
        if self.is_object(source) and name.startswith("v"):
            self.fetched[name] = None
        return name

    def graph_inputs(self, sources: list[Source]) -> tuple[list[str], str]:
        """(lines, text) of the list of a graph's inputs. Those that a stamp vouches for are put into a list once."""
        stamped = [source.base is not None and self.is_object(source) for source in sources]
        if sum(stamped) < 4:
            return [], f"[{', '.join(map(self.use, sources))}]"
        texts = [self.fetch(s) if known else "None" for s, known in zip(sources, stamped, strict=True)]
        self.prepared["G"] = f"[{', '.join(texts)}]"
        lines = [
            f"G[{i}] = {self.use(source)}"
            for i, (source, known) in enumerate(zip(sources, stamped, strict=True))
            if not known
        ]
        return ["G = G.copy()", *lines], "G"

    def check_memory(self, sources: list[Source], pointers: list[int]) -> None:
        """Which of these tensors share memory must stay as it is. pointers: to their memory now."""
        stamped = [source.base is not None and self.is_object(source) for source in sources]
        own = [pointer for pointer, known in zip(pointers, stamped, strict=True) if known]
        others = [pointer for pointer, known in zip(pointers, stamped, strict=True) if not known]
        if len(own) < 4 or not set(own).isdisjoint(others):
            texts = ", ".join(f"memory({self.use(source)})" for source in sources)
            self.check_late(f"alias_groups(({texts},)) == {alias_groups(pointers)!r}")
            return
        names = [self.fetch(source) for source, known in zip(sources, stamped, strict=True) if known]
        self.parts["storages"].update(dict.fromkeys(names))
        each = f"({', '.join(f'memory({name})' for name in names)},)"
        self.object_lines.append(f"P = {each}")
        self.object_lines.append(f"if alias_groups(P) != {alias_groups(own)!r}: return None")
        self.explained.append(f"alias_groups({each}) == {alias_groups(own)!r}")
        if others:
            self.prepared["P"] = "frozenset(P)"
            direct = [self.use(source) for source, known in zip(sources, stamped, strict=True) if not known]
            texts = ", ".join(f"memory({name})" for name in direct)
            self.check_late(f"P.isdisjoint(({texts},))", f"set({each}).isdisjoint(({texts},))")
            if len(others) > 1:
                self.check_late(f"alias_groups(({texts},)) == {alias_groups(others)!r}")

    def check_distinct(self, sources: list[Source]) -> None:
        """No two of these sources lead to one object."""
        if len(sources) < 2:
            return
        stamped = all(self.is_object(source) for source in sources)
        names = ", ".join(self.fetch(source) if stamped else self.use(source) for source in sources)
        if stamped:
            self.object_lines.append(f"if not are_distinct(({names})): return None")
            self.explained.append(f"are_distinct(({names}))")
        else:
            self.check_late(f"are_distinct(({names}))")

    def _note_read(self, source: Source, base: str, name: str) -> None:
        """What a stamp must watch so that this read would give the same again."""
        if not self.is_object(source) or source.base is None:
            return
        if source.kind == "dict":
            self.parts["holders"][f"({base}, {name})"] = None
        elif source.kind in ("key", "own_key"):
            self._reads_key(base, source.key)
        elif source.kind in ("nth_key", "nth_value"):
            self.keys_read[base] = None
        elif source.kind in ("item", "own_item"):
            if not isinstance(self.provenance.value_at(source.base), tuple):
                self.parts["lists"][base] = None
        elif source.kind in ("slot", "contents"):
            name = "cell_contents" if source.kind == "contents" else source.key
            owner = self.provenance.value_at(source.base)
            if name != "__globals__" and not isinstance(owner, _READ_ONLY):
                self.parts["probes"][f"partial(getattr, {base}, {name!r})"] = None
        elif source.kind == "called":
            self.parts["probes"][base] = None
        elif source.kind == "applied":
            function = self.constants.text(self.provenance.constants[source.key[0]])
            self.parts["probes"][f"partial({function}, {base})"] = None

    def _reads_key(self, name: str, key: Any) -> None:
        keys = self.keys_read.setdefault(name, {})
        if keys is not None:
            keys[self.constants.text(key)] = None

    # -- guards --

    def guard(self, guard: Guard) -> None:
        value = self.fetch(guard.source)
        text = guard.text(value, self.constants.text, self.fetch)
        others = [guard.expected] if guard.kind in (GuardKind.SAME, GuardKind.NOT_SAME) else []
        stamped = [self.is_object(s) for s in (guard.source, *others)]
        if _fits_helper(guard):
            name = f"t{guard.source.key[0]}"
            text = guard.text(name, self.constants.text, self.fetch)
            self.tensor_lines[guard.source.key[0]] = (
                f"{name} = S[{guard.source.key[0]}]",
                f"if not ({text}): return MISS",
            )
        elif not any(stamped) and not any(self.is_late(s) for s in (guard.source, *others)):
            self.direct_lines.append(f"if not ({text}): return MISS")
        elif all(stamped) and self._stampable(guard, value):
            if guard.kind is GuardKind.TENSOR:
                text = tensor_call(guard, value, self.constants.text) or text
            self.object_lines.append(f"if not ({text}): return None")
        else:
            self.check_late(guard.text(self.use(guard.source), self.constants.text, self.use))

    def check_late(self, condition: str, explained: str = "") -> None:
        """A condition over what `use` gives. explained: the same without what is prepared."""
        self.late_lines.append(f"if not ({condition}): return MISS")
        self.explained.append(explained or condition)

    def names(self) -> dict[str, Source]:
        """Text of a value in the generated code -> where it comes from."""
        found = {name: source for source, name in self._variables.items() if name.startswith("v")}
        found |= {source.text(""): source for source in self._variables if source.root is source}
        return found

    def _stampable(self, guard: Guard, value: str) -> bool:
        """Adds what a stamp must watch for this guard; False if it has to be checked on every call."""
        kind = guard.kind
        if kind in (GuardKind.EQ, GuardKind.IS, GuardKind.SAME, GuardKind.NOT_SAME):
            return True
        if kind in _WATCHED:
            self.parts[_WATCHED[kind]][value] = None
            return True
        if kind in (GuardKind.HAS_NOT, GuardKind.HAS):
            self._reads_key(value, guard.expected)
            return True
        read = self.provenance.value_at(guard.source)
        if kind in (GuardKind.LEN, GuardKind.KEYS):
            if isinstance(read, dict) or (read is None and guard.source.kind == "dict"):
                self.keys_read[value] = None
                return True
            if isinstance(read, list):
                self.parts["lengths" if kind is GuardKind.LEN else "lists"][value] = None
                return True
            return isinstance(read, tuple)
        return False

    # -- effects --

    def effect(self, rebuilder: Rebuilder, change: Change) -> list[str]:
        """The lines that replay one object's change. Values are rebuilt through `rebuilder`."""
        source = self.provenance.source_of(change.obj)
        assert source is not None
        return replay(self.use(source), change, rebuilder, self.constants.text)

    # -- assembly --

    def text(self, settings: list[str]) -> str:
        lines: list[str] = []
        if self.object_lines:
            lines += ["def check(S):", "    try:"]
            lines += [f"        {line}" for line in self.object_lines]
            lines += [f"    except {_FAILURES}: return None"]
            dicts = [
                f"({name}, {None if keys is None else _tuple_text(list(keys))})"
                for name, keys in self.keys_read.items()
            ]
            groups = [dicts, *map(list, self.parts.values())]
            given = [*self.fetched, *self.prepared.values()]
            texts = ", ".join(map(_tuple_text, [given, *groups]))
            lines += [f"    return Checked({texts})", ""]
        if self.tensor_lines:
            lines += [
                f"tensors_hold, tensors_learn = watch_tensors({_tuple_text(list(map(str, self.tensor_lines)))})"
            ]
        lines += ["def attempt(S):"]
        lines += [f"    if not ({text}): return MISS" for text in settings]
        if self.tensor_lines:
            checks = [line for both in self.tensor_lines.values() for line in both]
            lines += [
                "    if not tensors_hold(S):",
                "        try:",
                *(f"            {line}" for line in checks),
            ]
            lines += [f"        except {_FAILURES}: return MISS", "        tensors_learn(S)"]
        if self.direct_lines:
            lines += ["    try:", *(f"        {line}" for line in self.direct_lines)]
            lines += [f"    except {_FAILURES}: return MISS"]
        if self.object_lines:
            lines += ["    F = stamps.fetch(S)", "    if F is None: return MISS"]
            if self.fetched or self.prepared:
                lines += [f"    {_tuple_text([*self.fetched, *self.prepared])} = F"]
        if self.late_lines:
            lines += ["    try:", *(f"        {line}" for line in self.late_lines)]
            lines += [f"    except {_FAILURES}: return MISS"]
        lines += [f"    {line}" for line in self.body]
        return "\n".join(lines) + "\n"


#: Kind of a guard -> the part of `Checked` that watches what it compares.
_WATCHED = {
    GuardKind.TYPE: "objects",
    GuardKind.MRO: "classes",
    GuardKind.TENSOR: "tensors",
    GuardKind.EMPTY: "empties",
}


def _fits_helper(guard: Guard) -> bool:
    """Whether a guard is one of those that `tensor_check` knows a quick answer to."""
    if guard.kind is not GuardKind.TENSOR or guard.source.base is not None or guard.source.kind != "state":
        return False
    facts = guard.expected
    return None not in facts.shape and facts.stride is not None and not facts.requires_grad


def _tuple_text(names: list[str]) -> str:
    return f"({', '.join(names)},)" if names else "()"


def settings_checks(state: tuple[Any, ...], constant: Callable[[Any], str]) -> list[str]:
    """Guards on torch's own settings. state: `torch_private.torch_state()` at the trace."""
    grad, inference, dtype, functions, dispatchers, deterministic, autocast = state
    checks = [
        f"is_grad_enabled() is {grad}", f"is_inference_mode() is {inference}", f"default_dtype() is {constant(dtype)}",
        f"function_modes() == {len(functions)}", f"dispatch_modes() == {dispatchers}", f"deterministic() is {deterministic}",
        "jit_tracing() is None",  # torch.jit.trace would not see the kernels of a compiled graph
    ]  # fmt: skip
    if functions:
        checks.append(f"ambient_devices() == {constant(functions)}")
    if autocast is None:
        checks.append("not autocast()")
    else:
        checks.append(f"autocast_state() == {constant(autocast)}")
    return [" and ".join(checks)]
