"""Sources: where an object came from, as a path that another call or process can evaluate again.

A path is a root (an element of the code region's state, an imported module, a constant) and a chain
of steps. It gives Python text for guards and fetches, and a name for messages. Sources are
interned: equal sources are the same object, and are compared by identity.
"""

from __future__ import annotations

import enum
import importlib
import keyword
import re
from collections.abc import Callable
from typing import Any


class SourceTrait(enum.Flag):
    """What holds for every step of a `SourceKind`."""

    #: Its value is another object in each call: no fast-path guard covers it.
    VOLATILE = enum.auto()
    #: Equal numbers at several such steps are one input of the graph. (Numbers that are computed, or
    #: drawn, follow from others.)
    SHARED_NUMBER = enum.auto()
    #: It leads through an object of the program.
    THROUGH_OBJECT = enum.auto()
    #: `fx_capture.state_values` follows it.
    FOLLOWED = enum.auto()
    #: It leads from an object to a part of it.
    PART = enum.auto()
    #: It runs no code of the program.
    RUNS_NO_CODE = enum.auto()
    #: Its key is a tuple of plain values.
    TUPLE_KEY = enum.auto()


_NO_TRAITS = SourceTrait(0)
_VOLATILE, _SHARED = SourceTrait.VOLATILE, SourceTrait.SHARED_NUMBER
_FOLLOWED, _NO_CODE = SourceTrait.FOLLOWED, SourceTrait.RUNS_NO_CODE
_PART, _TUPLE = SourceTrait.PART | _FOLLOWED, SourceTrait.TUPLE_KEY
_THROUGH = SourceTrait.THROUGH_OBJECT | _FOLLOWED

Text = Callable[[str, Any], str]
Follow = Callable[[Any, Any], Any]

_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple}


class SourceKind(enum.Enum):
    """Kinds of steps.

    A row has the text of the fetch and the text for messages, of the base's text `b` and the key `k`;
    the traits; and the function of (base object, key) that follows the step in another process, where
    that is possible.
    """

    STATE = lambda b, k: f"S[{k[0]}]", lambda b, k: k[1], _FOLLOWED | _NO_CODE
    CONST = lambda b, k: f"C[{k[0]}]", lambda b, k: k[1], _THROUGH | _NO_CODE | _TUPLE
    MODULE = (lambda b, k: f"sys.modules[{k!r}]", lambda b, k: k, _THROUGH | _NO_CODE,
              lambda base, k: importlib.import_module(k))  # fmt: skip
    DICT = (lambda b, k: f"{b}.__dict__", lambda b, k: b, _THROUGH | _PART | _NO_CODE,
            lambda base, k: base.__dict__)  # fmt: skip
    KEY = (lambda b, k: f"{b}[{k!r}]", lambda b, k: _key_name(b, k), _PART | _NO_CODE | _SHARED,
           lambda base, k: base[k])  # fmt: skip
    ITEM = (lambda b, k: f"{b}[{k!r}]", lambda b, k: f"{b}[{k!r}]", _PART | _SHARED,
            lambda base, k: base[k])  # fmt: skip
    #: An entry of a dict whose class overrides ``__getitem__``: read by dict itself.
    OWN_KEY = (lambda b, k: f"dict.get({b}, {k!r}, MISS)", lambda b, k: f"{b}[{k!r}]", _PART,
               lambda base, k: dict.__getitem__(base, k))  # fmt: skip
    #: An item of a list or tuple whose class overrides ``__getitem__``. key: (list or tuple, index).
    OWN_ITEM = (lambda b, k: f"{k[0]}.__getitem__({b}, {k[1]})", lambda b, k: f"{b}[{k[1]}]",
                _PART | _TUPLE, lambda base, k: _SEQUENCES[k[0]].__getitem__(base, k[1]))  # fmt: skip
    SLOT = (lambda b, k: attribute_text(b, k), lambda b, k: f"{b}.{k}", _THROUGH | _PART | _SHARED,
            lambda base, k: getattr(base, k))  # fmt: skip
    #: The number in a tensor with one element.
    NUMBER = (lambda b, k: f"{b}.item()", lambda b, k: f"{b}.item()", _VOLATILE | _SHARED,
              lambda base, k: base.item())  # fmt: skip
    #: The frame of a continuation generator (trace/generator_continuations.py), and a value in it.
    CONTINUATION = lambda b, k: f"generator_facts({b})", lambda b, k: f"the frame of {b}", _VOLATILE
    CONTINUATION_VALUE = (lambda b, k: f"generator_values({b})[{k[0]}]", lambda b, k: f"{b}: {k[1]}",
                       _VOLATILE)  # fmt: skip
    #: The next index of an enumerate.
    COUNT = lambda b, k: f"{b}.__reduce__()[1][1]", lambda b, k: f"the index of {b}", _VOLATILE
    #: What an iterator yields after k steps.
    PEEKED = lambda b, k: f"peeked({b}, {k})", lambda b, k: f"item {k} of {b}", _VOLATILE
    #: All that an iterator over a table has left.
    LEFT = lambda b, k: f"items_left({b})", lambda b, k: f"what is left of {b}", _VOLATILE
    #: The next number of an itertools.count (0) or its step (1).
    COUNTED = lambda b, k: f"counted({b})[{k}]", lambda b, k: f"the number of {b}", _VOLATILE
    #: What k draws from a random.Random give (trace/python_rng.py).
    RNG_SAVED = lambda b, k: f"rng_ahead({b}, {k!r})", lambda b, k: f"numbers of {b}", _VOLATILE
    #: The data of a tensor of a subclass, as a plain tensor.
    PLAIN = lambda b, k: f"without_class({b})", lambda b, k: b, _VOLATILE
    #: ``.grad`` of a tensor, which is another object in each call.
    GRAD = (lambda b, k: f"{b}.grad", lambda b, k: f"{b}.grad", _VOLATILE,
            lambda base, k: base.grad)  # fmt: skip
    #: key: (position, the variable's name).
    CELL = (lambda b, k: f"{b}.__closure__[{k[0]}]", lambda b, k: k[1], _THROUGH | _NO_CODE | _TUPLE,
            lambda base, k: base.__closure__[k[0]])  # fmt: skip
    CONTENTS = (lambda b, k: f"{b}.cell_contents", lambda b, k: b, _THROUGH | _NO_CODE | _SHARED,
                lambda base, k: base.cell_contents)  # fmt: skip
    TYPE = (lambda b, k: f"type({b})", lambda b, k: f"type({b})", _NO_TRAITS,
            lambda base, k: type(base))  # fmt: skip
    #: key: an expression of {b}; or (expression, others), whose others are {1}, {2}, ... in it.
    COMPUTED = lambda b, k: computed(b, k), lambda b, k: computed(b, k, named=True)
    #: key: (a function as text, sources of its other arguments), fx_capture/state_values.py.
    READING = (
        lambda b, k: f"reading({k[0]!r})({', '.join([b, *(item.expression for item in k[1])])})",
        lambda b, k: f"a value of {', '.join([b, *(item.name for item in k[1])])}",
        _VOLATILE,
    )
    CALLED = (lambda b, k: f"{b}()", lambda b, k: f"{b}()", _NO_TRAITS,
              lambda base, k: base())  # fmt: skip
    APPLIED = lambda b, k: f"C[{k[0]}]({b})", lambda b, k: f"{k[1]}({b})"
    NTH_KEY = lambda b, k: f"list(dict.keys({b}))[{k}]", lambda b, k: f"list({b})[{k}]"
    NTH_VALUE = lambda b, k: f"list(dict.values({b}))[{k}]", lambda b, k: f"list({b}.values())[{k}]"
    #: The value of an instance of a subclass of a number or string type, as an object of the builtin
    #: type.
    PAYLOAD = lambda b, k: f"payload({b})", lambda b, k: b

    def __init__(self, text: Text, label: Text, traits: SourceTrait = _NO_TRAITS,
                 follow: Follow | None = None) -> None:  # fmt: skip
        self.text, self.label, self.traits, self.follow = text, label, traits, follow
        #: The name in stored entries.
        self.stored = self.name.lower()

    __hash__ = object.__hash__  # that of Enum is a Python function


def is_identifier(name: str) -> bool:
    """Whether a name can be written in Python source as it is. (Python normalizes non-ASCII
    letters.)
    """
    return name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def attribute_text(base: str, name: str) -> str:
    """Returns the text that reads an attribute of any name."""
    return f"{base}.{name}" if is_identifier(name) else f"getattr({base}, {name!r})"


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
    return _PLACE.sub(lambda result: parts[result[1]], template)


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
    """One step of a path."""

    __slots__ = ("base", "kind", "key", "root", "depth", "_name")

    #: The path before it; None for a root.
    base: Source | None
    kind: SourceKind
    #: The step's argument.
    key: Any
    #: The first step of the path.
    root: Source
    #: The number of steps before it.
    depth: int
    _name: str | None

    def text(self, base: str) -> str:
        """Returns the Python text of the fetch, given the text of the base."""
        return self.kind.text(base, self.key)

    @property
    def name(self) -> str:
        """Returns the path as a person would write it: ``self.layers.0.weight``."""
        if self._name is None:
            self._name = self.kind.label(self.base.name if self.base else "", self.key)
        return self._name

    @property
    def expression(self) -> str:
        """Returns the whole path as one Python expression over S (state), C (constants) and sys."""
        return self.text(self.base.expression if self.base else "")

    @property
    def starts_in_state(self) -> bool:
        """Whether the path begins at an element of the code region's state."""
        return self.root.kind is SourceKind.STATE

    @property
    def is_buffer(self) -> bool:
        """Whether the last step is an entry of a module's table of buffers."""
        base = self.base
        return base is not None and base.kind is SourceKind.KEY and base.key == "_buffers"

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Sources:
    """Makes and interns the sources of one trace."""

    def __init__(self) -> None:
        self._interned: dict[Any, Source] = {}

    def make(self, base: Source | None, kind: SourceKind, key: Any = None) -> Source:
        handle = (id(base), kind, type(key), key)
        result = self._interned.get(handle)
        if result is not None:
            return result
        source = Source.__new__(Source)
        source.base, source.kind, source.key, source._name = base, kind, key, None
        source.root = base.root if base is not None else source
        source.depth = base.depth + 1 if base is not None else 0
        self._interned[handle] = source
        return source

    def state(self, index: int, label: str) -> Source:
        """Returns the source of an element of the code region's state."""
        return self.make(None, SourceKind.STATE, (index, label))

    def module(self, name: str) -> Source:
        """Returns the source of an imported module."""
        return self.make(None, SourceKind.MODULE, name)

    def slot(self, base: Source, name: str) -> Source:
        """Returns the source of an attribute that is not in the instance dictionary."""
        return self.make(base, SourceKind.SLOT, name)

    def namespace(self, base: Source) -> Source:
        """Returns the source of an object's instance dictionary."""
        return self.make(base, SourceKind.DICT)

    def entry(self, base: Source, key: Any) -> Source:
        """Returns the source of an entry of a dict."""
        return self.make(base, SourceKind.KEY, key)

    def attribute(self, base: Source, name: str) -> Source:
        """Returns the source of an entry of an object's instance dictionary."""
        return self.entry(self.namespace(base), name)
