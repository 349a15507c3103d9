"""Describes values as JSON for another process, and creates them again from their descriptions.

A description is a dictionary of one entry, the kind of the value and its facts; of booleans, most
integers and most strings it is the value itself. Constants and containers are described here; what else a container
may hold (an object that is found by import, an input of a package) is a leaf, which the caller
describes and resolves. Nothing is pickled.

Imports nothing of the tracer: packages are loaded without it.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Node = Any


class NotPortable(Exception):
    """A value cannot be described for another process. The text names it."""


class Mismatch(Exception):
    """A value differs from its description."""

    def __init__(self, where: str, expected: str, actual: str) -> None:
        super().__init__(where, expected, actual)
        #: The value as the program writes it.
        self.where = where
        #: What it should be, in words.
        self.expected = expected
        #: What it is, in words.
        self.actual = actual


class Fields(dict[str, Any]):
    """The fields of an instance of a class that this process has not imported; they are attributes
    too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


# -- constants


@dataclass(frozen=True, slots=True)
class ConstantKind:
    """How constants of some types are written and read."""

    #: The exact types of the values.
    types: tuple[type, ...]
    #: Returns the facts of a value.
    write: Callable[[Any], Any]
    #: Returns the value of facts.
    read: Callable[[Any], Any]


_CONSTANTS = {
    "scalar": ConstantKind((), repr, lambda value: value),
    "literal": ConstantKind(
        (type(None), bool, int, str, bytes),
        repr,
        lambda text: None if text == "None" else ast.literal_eval(text),  # which takes longer
    ),
    "float": ConstantKind((float,), repr, float),
    "complex": ConstantKind(
        (complex,),
        lambda value: [repr(value.real), repr(value.imag)],
        lambda parts: complex(*map(float, parts)),
    ),
    "range": ConstantKind(
        (range,),
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*parts),
    ),
    "torch": ConstantKind(
        (torch.dtype, torch.layout, torch.memory_format),
        lambda value: str(value).removeprefix("torch."),
        lambda name: getattr(torch, name),
    ),
    "device": ConstantKind((torch.device,), str, torch.device),
    "size": ConstantKind((torch.Size,), list, torch.Size),
}
_KIND_OF_TYPE = {cls: kind for kind, row in _CONSTANTS.items() for cls in row.types}


def constant(value: Any) -> Node | None:
    """Returns the description of a constant; None for a value that is none."""
    cls = type(value)
    kind = _KIND_OF_TYPE.get(cls)
    if cls is bool or (cls is int and value.bit_length() < 64) or (cls is str and value.isascii()):
        return value  # JSON has it
    try:
        return None if kind is None else {kind: _CONSTANTS[kind].write(value)}
    except ValueError:  # an integer of more digits than Python writes
        return None


def value_of(node: Node) -> Any:
    """Returns the constant of a description."""
    kind, facts = kind_of(node)
    return _CONSTANTS[kind].read(facts)


def is_same(node: Node, other: Node) -> bool:
    """Returns whether the descriptions of two constants are those of equal values of one type."""
    return type(node) is type(other) and bool(node == other)


def kind_of(node: Node) -> tuple[str, Any]:
    """Returns the kind and the facts of a description."""
    if type(node) is dict:
        ((kind, facts),) = node.items()
        return kind, facts
    if type(node) not in (bool, int, str):
        raise TypeError(f"{node!r} describes nothing")
    return "scalar", node


# -- containers

#: Kind of a container -> function that creates one of (its class, labels, parts). Where a process has
#: not imported the class, None, the fields are a tuple or `Fields`.
_CONTAINERS: dict[str, Callable[[Any, list[Any], list[Any]], Any]] = {
    "list": lambda cls, labels, parts: parts,
    "tuple": lambda cls, labels, parts: tuple(parts),
    "dict": lambda cls, labels, parts: dict(zip(labels, parts, strict=True)),
    "OrderedDict": lambda cls, labels, parts: collections.OrderedDict(
        zip(labels, parts, strict=True)
    ),
    "namedtuple": lambda cls, labels, parts: tuple.__new__(cls or tuple, parts),
    "structseq": lambda cls, labels, parts: tuple(parts) if cls is None else cls(parts),
    # one of the tracer's own, whose fields have their order
    "record": lambda cls, labels, parts: cls(*parts),
    "dataclass": lambda cls, labels, parts: (Fields if cls is None else cls)(
        **dict(zip(labels, parts, strict=True))
    ),
}
_WITHOUT_PATH = (list, tuple, dict, collections.OrderedDict)
_INDEXED, _KEYED = ("list", "tuple", "record"), ("dict", "OrderedDict")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a container holds."""

    #: A key of `_CONTAINERS`.
    kind: str
    #: Index, key or name of each part.
    labels: list[Any]
    parts: list[Any]

    def items(self, where: str) -> Iterator[tuple[Any, str]]:
        """Yields the parts, each with its place in what the program writes as `where`."""
        for label, part in zip(self.labels, self.parts, strict=True):
            is_item = self.kind in ("list", "tuple", *_KEYED)
            yield part, f"{where}[{label!r}]" if is_item else f"{where}.{label}"


def contents(value: Any) -> Contents | None:
    """Returns what a container holds; None for other values."""
    cls = type(value)
    if cls in (list, tuple):
        return Contents(cls.__name__, list(range(len(value))), list(value))
    if cls in (dict, collections.OrderedDict):
        return Contents(cls.__name__, list(value), list(value.values()))
    if issubclass(cls, tuple) and hasattr(cls, "_fields") and not getattr(value, "__dict__", None):
        return Contents("namedtuple", list(cls._fields), list(value))
    if cls.__module__ == "torch.return_types":  # of torch.max
        return Contents("structseq", list(cls.__match_args__), list(value))
    if dataclasses.is_dataclass(cls) and all(field.init for field in dataclasses.fields(cls)):
        if issubclass(cls, dict):  # which leaves out fields that are None
            return Contents("dataclass", list(value), list(value.values()))
        names = [field.name for field in dataclasses.fields(cls)]
        parts = [getattr(value, name) for name in names]
        is_own = cls.__module__.startswith("tracer_core.")
        return Contents("record" if is_own else "dataclass", names, parts)
    return None


def class_path(cls: type) -> str:
    """Returns where a class is imported from, as it says itself."""
    return f"{cls.__module__}:{cls.__qualname__}"


def imported_class(path: str) -> type | None:
    """Returns a class if this process has imported it."""
    module, _, name = path.partition(":")
    attribute: Any = sys.modules.get(module)
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    return attribute if isinstance(attribute, type) else None


class Describer:
    """Describes values. Mutable.

    Args:
        leaf: Returns the description of a leaf; None for constants and containers.
    """

    def __init__(self, leaf: Callable[[Any, str], Node | None]) -> None:
        self._leaf = leaf
        #: ids of the objects that are being described.
        self._open: set[int] = set()

    def describe(self, value: Any, where: str) -> Node:
        """Returns the description of a value.

        Args:
            value: The value.
            where: The value as the program writes it (``x``, ``batch['ids']``), for messages.

        Raises:
            NotPortable: The value, or a part of it, is no leaf, constant or container.
        """
        if id(value) in self._open:
            raise NotPortable(f"{where} is found only through itself")
        self._open.add(id(value))
        try:
            for described in (self._leaf(value, where), constant(value)):
                if described is not None:
                    return described
            return self._container(value, where)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, where: str) -> Node:
        inside, cls = contents(value), type(value)
        if inside is None:
            raise NotPortable(
                f"{where} is a {cls.__module__}.{cls.__qualname__}; a package takes tensors, plain"
                " values, lists, tuples, dicts, named tuples and dataclasses"
            )
        labels = None if inside.kind in _INDEXED else list(map(constant, inside.labels))
        if labels is not None and None in labels:
            key = inside.labels[labels.index(None)]
            raise NotPortable(f"{where} has a {type(key).__name__} as a key")
        path = None if cls in _WITHOUT_PATH else class_path(cls)
        parts = [self.describe(part, at) for part, at in inside.items(where)]
        return {inside.kind: [path, labels, parts]}


def restore(node: Node, leaf: Callable[[Node], Any]) -> Any:
    """Returns the value of a description, whose leaves `leaf` resolves."""
    kind, facts = kind_of(node)
    if kind in _CONSTANTS:
        return _CONSTANTS[kind].read(facts)
    if kind not in _CONTAINERS:
        return leaf(node)
    path, labels, parts = facts
    if labels is not None:
        labels = [restore(label, leaf) for label in labels]
    values = [restore(part, leaf) if type(part) is dict else part for part in parts]
    return _CONTAINERS[kind](None if path is None else imported_class(path), labels, values)


def maker(node: Node, leaf: Callable[[Node], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Returns a function that creates the value of a description anew for each call.

    Args:
        node: The description.
        leaf: Returns the function that reads the value of a leaf from what the returned function
            is called with.
    """
    kind, facts = kind_of(node)
    if kind in _CONSTANTS:
        fixed = value_of(node)
        return lambda inputs: fixed
    if kind not in _CONTAINERS:
        return leaf(node)
    (path, _, parts), labels, create = facts, labels_of(node), _CONTAINERS[kind]
    readers = [maker(part, leaf) for part in parts]

    def make(inputs: Any) -> Any:
        cls = None if path is None else imported_class(path)
        return create(cls, labels, [read(inputs) for read in readers])

    return make


def labels_of(node: Node) -> list[Any]:
    """Returns the index, key or name of each part of a container."""
    _, (_, labels, parts) = kind_of(node)
    return list(range(len(parts)) if labels is None else map(value_of, labels))


def leaf_nodes(node: Node) -> Iterator[Node]:
    """Yields the descriptions of the leaves in a description."""
    kind, facts = kind_of(node)
    if kind in _CONTAINERS:
        for part in facts[2]:
            yield from leaf_nodes(part)
    elif kind not in _CONSTANTS:
        yield node


# -- inputs beside their descriptions


def leaves(node: Node, value: Any, where: str) -> Iterator[tuple[Node, Any, str]]:
    """Yields (description, value, where) of the leaves of an input. Raises Mismatch if the input has
    another structure."""
    kind, facts = kind_of(node)
    if kind in _CONSTANTS:
        if not is_same(constant(value), node):
            raise Mismatch(where, f"the constant {shown(node)}", as_text(value))
    elif kind not in _CONTAINERS:
        yield node, value, where
    else:
        inside, labels = _contents_as(kind, facts[0], value), labels_of(node)
        if inside is None:
            raise Mismatch(where, shown(node), as_text(value))
        if inside.labels != labels:
            there = f"of {len(inside.labels)}" if kind in _INDEXED else f"with {inside.labels}"
            raise Mismatch(where, shown(node), f"one {there}")
        for (part, at), inner in zip(inside.items(where), facts[2], strict=True):
            yield from leaves(inner, part, at)


def _contents_as(kind: str, cls: str | None, value: Any) -> Contents | None:
    """Returns what a value holds if it is a container of this kind and class. Any dictionary passes
    for a dictionary, and `Fields` for an instance of every class."""
    if isinstance(value, dict if kind in _KEYED else Fields):
        return Contents(kind, list(value), list(value.values()))
    inside = contents(value)
    is_other = inside is None or inside.kind != kind or (cls and class_path(type(value)) != cls)
    return None if is_other else inside


def shown(node: Node) -> str:
    """Returns a description in words."""
    kind, facts = kind_of(node)
    if kind in _CONSTANTS:
        return repr(value_of(node))
    if kind in _INDEXED:
        return f"a {kind} of {len(facts[2])}"
    if kind in _KEYED:
        return f"a dict with the keys {labels_of(node)} in this order"
    return f"a {facts[0]} with {labels_of(node)}" if kind in _CONTAINERS else f"a {kind}"


def as_text(value: Any) -> str:
    """Returns a value that a user gave in words."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {dtype} tensor of sizes {tuple(value.shape)} on {value.device}"
    if constant(value) is not None:
        return repr(value)[:80]
    return f"a {type(value).__name__}"
