"""The guards on objects, in parts: each part is under one fast-path guard (`guards.fast_path_guard`).

A part has what is read of the objects that some roots lead to. A root is a value of the state with
an identity (a module, a cache of keys), or the first such object on a path from the state (in a
closure cell, a dictionary of arguments). Where one root is another object than in the last call,
only its part is checked in full again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tracer_core.guards.fast_path_guard import GuardCache
from tracer_core.guards.source import Source
from tracer_core.guards.watched_fields import Checked

_FAILURES = "(KeyError, IndexError, AttributeError, TypeError, ValueError, ArithmeticError)"
#: A part with fewer statements has no fast-path guard of its own: what only a path leads to is
#: checked in each call, the rest together with the other small parts.
MIN_DERIVED, MIN_OWN_GUARD = 24, 200


@dataclass(slots=True, eq=False)
class ObjectPart:
    """The fetches and checks of one part. Mutable. roots: source of a root -> its variable.
    statements: (a statement or a condition, whether it is a condition). fetched: name in the entry ->
    text of the value. watched: field of `Checked` -> texts of its elements. keys_read: variable
    of a dictionary -> text of each key read in it; None: the keys themselves matter."""

    roots: dict[Source, str] = field(default_factory=dict)
    statements: list[tuple[str, bool]] = field(default_factory=list)
    fetched: dict[str, str] = field(default_factory=dict)
    watched: dict[str, dict[str, None]] = field(
        default_factory=lambda: {item.name: {} for item in fields(Checked)}
    )
    keys_read: dict[str, dict[str, None] | None] = field(default_factory=dict)

    def merge(self, other: ObjectPart) -> None:
        """Adds another part to this one."""
        self.roots |= other.roots
        self.statements += other.statements
        self.fetched |= other.fetched
        for name, texts in other.watched.items():
            self.watched[name] |= texts
        self.keys_read |= other.keys_read

    @property
    def is_derived(self) -> bool:
        """Whether the state itself has none of the roots, but there are some."""
        return bool(self.roots) and all(source.base is not None for source in self.roots)

    def lines(self, otherwise: str) -> list[str]:
        """Returns the statements as lines. otherwise: the statement where a condition fails."""
        return [
            f"if not ({text}): {otherwise}" if check else text for text, check in self.statements
        ]

    def function(
        self,
        name: str,
        places: Sequence[int],
        revived: Sequence[str],
        written: Collection[str | None],
    ) -> list[str]:
        """Returns the function that checks the part. places: of the roots in the state. revived: its
        first lines. written: variables of dictionaries that the entry writes to."""
        fetches = [f"{v} = S[{at}]" for v, at in zip(self.roots.values(), places, strict=True)]
        dicts = [
            f"({item}, {None if keys is None else tuple_text(list(keys))})"
            for item, keys in self.keys_read.items()
        ]
        inputs: dict[str, Collection[str]] = {**self.watched, "dicts": dicts}
        inputs["fetched"] = self.fetched.values()
        inputs["moving"] = [item for item in self.keys_read if item in written]
        texts = ", ".join(f"{k}={tuple_text(values)}" for k, values in inputs.items() if values)
        lines = [f"def {name}(S):", *revived]
        lines += tried([*fetches, *self.lines("return None")], "return None")
        return [*lines, f"    return Checked({texts})", ""]


def arranged(parts: Collection[ObjectPart]) -> tuple[list[ObjectPart], list[ObjectPart]]:
    """Returns (parts with fast-path guards, the largest first; parts that each call checks). What
    no value of the state leads to, such as the classes of a library, goes to the largest part."""
    parts = [part for part in parts if part.statements or part.fetched]
    inlined = [p for p in parts if p.is_derived and len(p.statements) < MIN_DERIVED]
    others = sorted((p for p in parts if p not in inlined), key=lambda p: -len(p.statements))
    rooted = [part for part in others if part.roots] or others
    result, small = rooted[:1], ObjectPart()
    for part in others:
        if part in result:
            continue
        if not part.roots:
            result[0].merge(part)
        elif len(part.statements) >= MIN_OWN_GUARD:
            result.append(part)
        else:
            small.merge(part)
    if small.roots and result and len(result[0].statements) < MIN_OWN_GUARD:
        result[0].merge(small)
    elif small.roots:
        result.append(small)
    return result, inlined


def add_guard_caches(namespace: dict[str, Any], roots: Sequence[Sequence[int]]) -> None:
    """Adds the guard caches of a generated module. roots: of each part, places in the state."""
    for i, places in enumerate(roots):
        namespace[guard_cache(i)] = GuardCache(namespace[check(i)], tuple(places))


def guard_cache(i: int) -> str:
    """Returns the name of the guard cache of a part."""
    return f"guard_cache_{i}" if i else "guard_cache"


def check(i: int) -> str:
    """Returns the name of the function that checks a part."""
    return f"check_{i}" if i else "check"


def tried(lines: Sequence[str], otherwise: str = "return MISS") -> list[str]:
    """Returns the body of a function that runs these lines, and this statement if they fail."""
    body = [f"        {line}" for line in lines]
    return ["    try:", *body, f"    except {_FAILURES}: {otherwise}"]


def tuple_text(names: Collection[str]) -> str:
    """Returns the text of a tuple."""
    inside = ", ".join(names)
    return f"({inside},)" if inside else "()"
