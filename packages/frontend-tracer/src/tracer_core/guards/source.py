"""Sources: where an object came from, as a path that another call or process can evaluate again.

A path is a root (an element of the code region's state, an imported module, a constant) and a chain
of steps. It gives Python text for guards and fetches, and a name for messages. Sources are
interned: equal sources are the same object, and are compared by identity.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import Any

#: kind -> (text of the fetch, text for messages). `b` is the base's text, `k` the key.
_KINDS: dict[str, tuple[Callable[[str, Any], str], Callable[[str, Any], str]]] = {
    "state": (lambda b, k: f"S[{k[0]}]", lambda b, k: k[1]),
    "const": (lambda b, k: f"C[{k[0]}]", lambda b, k: k[1]),
    "module": (lambda b, k: f"sys.modules[{k!r}]", lambda b, k: k),
    "dict": (lambda b, k: f"{b}.__dict__", lambda b, k: b),
    "key": (lambda b, k: f"{b}[{k!r}]", lambda b, k: _key_name(b, k)),
    "item": (lambda b, k: f"{b}[{k!r}]", lambda b, k: f"{b}[{k!r}]"),
    # An item of a container whose class overrides ``__getitem__``: read by dict, list or tuple
    # itself.
    "own_key": (lambda b, k: f"dict.get({b}, {k!r}, MISS)", lambda b, k: f"{b}[{k!r}]"),
    "own_item": (lambda b, k: f"{k[0]}.__getitem__({b}, {k[1]})", lambda b, k: f"{b}[{k[1]}]"),
    "slot": (lambda b, k: attribute_text(b, k), lambda b, k: f"{b}.{k}"),
    # ``.grad`` of a tensor, which is another object on every call. The number in a tensor with one
    # element.
    "number": (lambda b, k: f"{b}.item()", lambda b, k: f"{b}.item()"),
    # Of a suspended generator (trace/suspended_generators.py).
    "suspended": (lambda b, k: f"generator_facts({b})", lambda b, k: f"the frame of {b}"),
    "suspended_value": (lambda b, k: f"generator_values({b})[{k[0]}]", lambda b, k: f"{b}: {k[1]}"),
    # The next index of an enumerate.
    "count": (lambda b, k: f"{b}.__reduce__()[1][1]", lambda b, k: f"the index of {b}"),
    # What an iterator yields after k steps.
    "peeked": (lambda b, k: f"peeked({b}, {k})", lambda b, k: f"item {k} of {b}"),
    # All that an iterator over a table has left; the next number of an itertools.count, its step.
    "left": (lambda b, k: f"items_left({b})", lambda b, k: f"what is left of {b}"),
    "counted": (lambda b, k: f"counted({b})[{k}]", lambda b, k: f"the number of {b}"),
    # What k draws from a random.Random give (trace/random_draws.py).
    "drawn": (lambda b, k: f"drawn_ahead({b}, {k!r})", lambda b, k: f"numbers of {b}"),
    # The data of a tensor of a subclass, as a plain tensor.
    "plain": (lambda b, k: f"without_class({b})", lambda b, k: b),
    "grad": (lambda b, k: f"{b}.grad", lambda b, k: f"{b}.grad"),
    # key: (position, the variable's name)
    "cell": (lambda b, k: f"{b}.__closure__[{k[0]}]", lambda b, k: k[1]),
    "contents": (lambda b, k: f"{b}.cell_contents", lambda b, k: b),
    "type": (lambda b, k: f"type({b})", lambda b, k: f"type({b})"),
    # key: an expression of {b}; or (expression, others), whose others are {1}, {2}, ... in it.
    "computed": (lambda b, k: computed(b, k), lambda b, k: computed(b, k, named=True)),
    # key: (a function as text, sources of its other arguments), fx_capture/state_values.py.
    "reading": (
        lambda b, k: f"reading({k[0]!r})({', '.join([b, *(one.expression for one in k[1])])})",
        lambda b, k: f"a value of {', '.join([b, *(one.name for one in k[1])])}",
    ),
    "called": (lambda b, k: f"{b}()", lambda b, k: f"{b}()"),
    "applied": (lambda b, k: f"C[{k[0]}]({b})", lambda b, k: f"{k[1]}({b})"),
    "nth_key": (lambda b, k: f"list(dict.keys({b}))[{k}]", lambda b, k: f"list({b})[{k}]"),
    "nth_value": (
        lambda b, k: f"list(dict.values({b}))[{k}]",
        lambda b, k: f"list({b}.values())[{k}]",
    ),
    # The value of an instance of a subclass of a number or string type, as an object of the builtin
    # type.
    "payload": (lambda b, k: f"payload({b})", lambda b, k: b),
}


def is_plain_name(name: str) -> bool:
    """Whether a name can be written in Python source as it is. (Python normalizes non-ASCII
    letters.)
    """
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def attribute_text(base: str, name: str) -> str:
    """Returns the text that reads an attribute of any name."""
    return f"{base}.{name}" if is_plain_name(name) else f"getattr({base}, {name!r})"


def computed(
    base: str, key: Any, named: bool = False, fetch: Callable[[Any], str] | None = None
) -> str:
    """Returns the text of a `computed` step.

    named: for messages. fetch: returns the text of another source (default: its path).
    """
    template, others = key if isinstance(key, tuple) else (key, ())
    parts = {"b": base}
    for i, other in enumerate(others, 1):
        parts[str(i)] = fetch(other) if fetch else other.name if named else other.expression
    # In one pass: a key of the program may contain a placeholder.
    return _PLACE.sub(lambda found: parts[found[1]], template)


_PLACE = re.compile(r"\{(b|\d+)\}")


#: Types whose subclasses hold a value that never changes -> the method that returns it, whatever a
#: subclass overrides.
_PAYLOADS: dict[type, Callable[[Any], Any]] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__,
    bytes: bytes.__bytes__,
}  # fmt: skip


def payload(value: Any) -> Any:
    """Returns the number or string that an instance of a subclass holds."""
    for kind, read in _PAYLOADS.items():
        if isinstance(value, kind):
            return read(value)
    return value


#: Internal tables of nn.Module, which names for messages leave out.
_MODULE_TABLES = frozenset({"_modules", "_parameters", "_buffers"})


def _key_name(base: str, key: Any) -> str:
    if key in _MODULE_TABLES:
        return base
    return f"{base}.{key}" if isinstance(key, str) else f"{base}[{key!r}]"


class Source:
    """One step of a path.

    base: the path before it (None for a root). kind: a row of `_KINDS`. key: the step's argument.
    root: the first step of the path.
    """

    __slots__ = ("base", "kind", "key", "root", "depth", "_name")

    base: Source | None
    kind: str
    key: Any
    root: Source
    depth: int
    _name: str | None

    def text(self, base: str) -> str:
        """Returns the Python text of the fetch, given the text of the base."""
        return _KINDS[self.kind][0](base, self.key)

    @property
    def name(self) -> str:
        """Returns the path as a person would write it: ``self.layers.0.weight``."""
        if self._name is None:
            self._name = _KINDS[self.kind][1](self.base.name if self.base else "", self.key)
        return self._name

    @property
    def expression(self) -> str:
        """Returns the whole path as one Python expression over S (state), C (constants) and sys."""
        return self.text(self.base.expression if self.base else "")

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Sources:
    """Makes and interns the sources of one trace."""

    def __init__(self) -> None:
        self._interned: dict[Any, Source] = {}

    def make(self, base: Source | None, kind: str, key: Any = None) -> Source:
        handle = (id(base), kind, type(key), key)
        found = self._interned.get(handle)
        if found is not None:
            return found
        source = Source.__new__(Source)
        source.base, source.kind, source.key, source._name = base, kind, key, None
        source.root = base.root if base is not None else source
        source.depth = base.depth + 1 if base is not None else 0
        self._interned[handle] = source
        return source

    def attribute(self, base: Source, name: str) -> Source:
        """Returns the source of an entry of an object's instance dictionary."""
        return self.make(self.make(base, "dict"), "key", name)
