"""Explains guards: what a cache entry relied on, and which guard a call fails.

Nothing is built until somebody asks, because most cache entries never fail, and no object of the
traced call is kept alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.guard import Guard, GuardKind, Relation, show
from tracer_core.guards.own_reference import object_of
from tracer_core.guards.source import Source, SourceKind, SourceTrait
from tracer_core.guards.tensor_guard import tensor_checks

#: What differs between processes in the text of a guard.
_NUMBERED = re.compile(r" at 0x[0-9a-f]+|(?<=\bc)\d+\b")
#: Kinds from the cheapest check to the most costly one.
_COST = {kind: i for i, kind in enumerate((
    GuardKind.IS, GuardKind.TYPE, GuardKind.EQ, GuardKind.SAME, GuardKind.NOT_SAME,
    GuardKind.EMPTY, GuardKind.LEN, GuardKind.HAS, GuardKind.HAS_NOT, GuardKind.UNBOUND,
    GuardKind.UNSET, GuardKind.IS_SET, GuardKind.MRO, GuardKind.FUNCTION, GuardKind.KEYS,
    GuardKind.DATA, GuardKind.TENSOR,
))}  # fmt: skip


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        grad = ", requires_grad" if value.requires_grad else ""
        shape, stride = tuple(value.shape), value.stride()
        return f"a {value.dtype} tensor of shape {shape}, stride {stride}{grad}"
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) < 100 else f"{text[:97]}..."


#: What of the value to show beside a failed guard.
_NOW: dict[GuardKind, Callable[[Guard, Any], Any]] = {
    GuardKind.LEN: lambda guard, v: len(v),
    GuardKind.KEYS: lambda guard, v: list(v),
    GuardKind.TYPE: lambda guard, v: type(v),
    GuardKind.MRO: lambda guard, v: v.__mro__,
}
#: Kinds about an entry of a dict, or an attribute -> the texts of what an entry was captured with
#: and, where it can be no other, of what it is.
_ENTRIES = {GuardKind.HAS: ("there", "missing"), GuardKind.HAS_NOT: ("missing", None)}


@dataclass(frozen=True, slots=True)
class Failed:
    """A guard that a state does not meet. text: for people. source: of the value ("" for a relation
    of several); seen, now: texts of what the entry was captured with, and of what it is. died: what
    the entry was captured with is dead, so that an equal text may name another object. hint: what
    keeps it from failing. is_setting: of torch (grad mode, threads), which no value has."""

    text: str
    source: str = ""
    seen: str = ""
    now: str = ""
    hint: str = ""
    died: bool = False
    line: str = ""
    is_setting: bool = False


#: Kind of a guard -> what somebody can do whose value keeps changing.
_HINTS: dict[GuardKind, str] = {
    GuardKind.TENSOR: (
        "tracer_core.mark_dynamic(tensor, dim) for a size that changes (which dynamic=False "
        "forbids); of each rank, dtype, device and layout there is a graph of its own"
    ),
    GuardKind.IS: "make that object (a function, a lambda) once, outside of the call",
    GuardKind.SAME: "make that object once, outside of the call",
    GuardKind.LEN: "a tensor whose size changes in place of a container whose length does",
    GuardKind.KEYS: "the same keys in each call",
    GuardKind.TYPE: "values of one type",
}
_NUMBER = ("a tensor in place of the number, where the program must know its value (as a key, a text, a size "
           "that is compared) or the backend takes no numbers")  # fmt: skip
_OTHERS = (
    "read it outside of the compiled function, or tracer_core.disable the function that reads it"
)


def _hint(guard: Guard) -> str:
    if guard.kind is GuardKind.EQ and type(guard.expected) in (int, float):
        return _NUMBER
    return _HINTS.get(guard.kind, _OTHERS)


class Failure:
    """Says which guard of a cache entry fails for a state, with the old and the new value. settings:
    conditions on torch's settings, each with the text that reads the setting and what it was.
    guards: of the trace. others: what else was checked. constants: text for an object. scope: of
    the generated code."""

    def __init__(
        self,
        settings: Mapping[str, tuple[str, Any]],
        guards: Sequence[Guard],
        others: Sequence[Guard | Relation],
        constants: Any,
        path_constants: Sequence[Any],
        scope: dict[str, Any],
    ) -> None:
        self._settings, self._guards, self._others = settings, guards, others
        self._constants, self._path_constants, self._scope = constants, path_constants, scope

    def with_more(self, added: Sequence[Relation]) -> Failure:
        """Returns it with these conditions too."""
        others = (*self._others, *added)
        constants, paths = self._constants, self._path_constants
        return Failure(self._settings, self._guards, others, constants, paths, self._scope)

    def texts(self) -> tuple[str, ...]:
        """The guards as expressions, those of one object together, the cheapest first."""
        return tuple(text for texts in self.by_object().values() for text in texts)

    def by_object(self) -> dict[str, list[str]]:
        """Returns `texts` by the name of the object that each reads."""
        groups: dict[str, list[Guard]] = {}
        for guard in self._guards:
            groups.setdefault(_owner(guard.source), []).append(guard)
        return {
            owner: [str(guard) for guard in sorted(group, key=lambda g: _COST[g.kind])]
            for owner, group in groups.items()
        }

    def by_line(self) -> dict[str, list[str]]:
        """Returns the guards by the line of the program that made each."""
        result: dict[str, list[str]] = {}
        for guard in self._guards:
            result.setdefault(guard.line, []).append(str(guard))
        return result

    def conditions(self) -> tuple[str, ...]:
        """Returns `texts` and the conditions on torch's settings, without addresses and numbers of
        constants: equal in each process."""
        return tuple(_NUMBERED.sub("", setting) for setting in (*self._settings, *self.texts()))

    def __call__(self, state: Any) -> str | None:
        """The text of `failed`."""
        failed = self.failed(state)
        return None if failed is None else failed.text

    def failed(self, state: Any) -> Failed | None:
        """The first guard that fails, or None."""
        constants = [object_of(constant) for constant in self._path_constants]
        scope = {**self._scope, **self._constants.alive(), "S": state, "C": constants}
        for text, (reading, seen) in self._settings.items():
            if not eval(text, scope):
                now = _short(eval(reading, scope))
                text = f"torch settings: {text}, but it is {now}"
                return Failed(text, f"torch's {reading}", _short(seen), now, is_setting=True)
        for guard in (*self._guards, *self._others):
            failed = (
                self._failed(guard, scope)
                if isinstance(guard, Guard)
                else _failed_relation(guard, scope)
            )
            if failed is not None:
                return failed
        return None

    def _failed(self, guard: Guard, scope: dict[str, Any]) -> Failed | None:
        try:
            value = scope["v"] = eval(guard.source.expression, scope)
            text = guard.text("v", self._constants.text, _evaluated)
            # Texts of guards make constants as they go.
            scope.update(self._constants.alive())
            if eval(text, scope):
                return None
            if guard.kind in _ENTRIES:
                return _failed_entry(guard, value)
            now = _short(_NOW[guard.kind](guard, value) if guard.kind in _NOW else value)
            if guard.kind is GuardKind.TENSOR:
                return self._failed_tensor(guard, value, scope)
            text = f"{guard}, but it is {now}"
            hint, died = _hint(guard), _died(guard)
            return Failed(text, guard.source.name, _seen(guard), now, hint, died, guard.line)
        except Exception as error:
            now = f"{type(error).__name__}: {error}"  # what the guard reads is not there any more
            return Failed(f"{guard}, but {now}", guard.source.name, _seen(guard), now, _hint(guard))

    def _failed_tensor(self, guard: Guard, value: Any, scope: dict[str, Any]) -> Failed:
        """The property of a tensor that differs."""
        shown = tensor_checks(guard.expected, guard.source.name, show)
        checks = tensor_checks(guard.expected, "v", self._constants.text)
        with torch_private.functions_off():
            differs = next(what for what, check in checks.items() if not eval(check, scope))
        text = f"{shown[differs]}, but it is {_short(type(value) if differs == 'type' else value)}"
        now, line = _tensor_text(value), guard.line
        return Failed(text, guard.source.name, _seen(guard), now, _hint(guard), line=line)


def _failed_entry(guard: Guard, value: Any) -> Failed:
    """An entry of a dict, or an attribute, that is there or is missing against what was captured."""
    name = SourceKind.KEY.label(guard.source.name, guard.expected)
    seen, missing = _ENTRIES[guard.kind]
    now = missing or _short(value[guard.expected])
    return Failed(f"{guard}, but {name} is {now}", name, seen, now, _hint(guard))


def _failed_relation(condition: Relation, scope: dict[str, Any]) -> Failed | None:
    try:
        if eval(condition.text(_evaluated), scope):
            return None
        sources = condition.sources[:3]  # that many are shown
        shown = [_short(eval(source.expression, scope)) for source in sources]
    except Exception:  # a value that the condition reads is not there any more
        return Failed(str(condition))
    names = [source.name for source in sources]
    are = ", ".join(f"{name} is {value}" for name, value in zip(names, shown, strict=True))
    return Failed(f"{condition}, but {are}", ", ".join(names), str(condition), ", ".join(shown))


def _evaluated(source: Source) -> str:
    return f"({source.expression})"


def _died(guard: Guard) -> bool:
    """Returns whether the object that a guard expects is dead."""
    return guard.expected is not None and object_of(guard.expected) is None


def _seen(guard: Guard) -> str:
    """Returns what a cache entry was captured with, in the words of `Failed.now`."""
    if _died(guard):
        return repr(guard.expected)
    expected = object_of(guard.expected)
    if guard.kind is GuardKind.TENSOR:
        sizes = ", ".join("any" if size is None else str(size) for size in expected.shape)
        return f"{expected.dtype} [{sizes}]"
    return _short(list(expected) if guard.kind is GuardKind.KEYS else expected)


def _tensor_text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return _short(value)
    return f"{value.dtype} [{', '.join(map(str, value.shape))}]"


def _owner(source: Source) -> str:
    """What people call the object that a source is read from."""
    while source.base is not None and SourceTrait.PART in source.kind.traits:
        if (
            source.kind is SourceKind.KEY
            and isinstance(source.key, str)
            and source.base.kind is SourceKind.DICT
        ):
            return source.base.name
        source = source.base
    return source.name
