"""The structure of a package's inputs and outputs as JSON: containers whose leaves are tensors and
constants.

A node is a dictionary with a ``"kind"``: ``constant``, ``list``, ``tuple``, ``dict``, ``fields`` (a
dataclass, a named tuple, a dataclass that is a dictionary too), or a kind of leaf that the user of
this module chooses. Nothing is pickled, and making a value again imports nothing: a class is used
where the process has imported it, and else its fields are a `Fields` or a tuple.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

Node = dict[str, Any]


class Fields(dict[str, Any]):
    """The fields of an instance of a class that this process has not imported; they are attributes
    too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class CannotDescribe(Exception):
    """A value is no leaf, constant or container that a package can hold. The text names it."""


class Mismatch(Exception):
    """A value differs from its node. where, expected, found: in words."""

    def __init__(self, where: str, expected: str, found: str) -> None:
        super().__init__(where, expected, found)
        self.where, self.expected, self.found = where, expected, found


#: Types of torch whose values are attributes of the module `torch`.
_NAMED_BY_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_TO_TEXT: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: None,
    bool: lambda value: value,
    int: str,
    float: repr,
    complex: lambda value: [repr(value.real), repr(value.imag)],
    str: lambda value: value,
    torch.device: str,
    torch.Size: list,
    **dict.fromkeys(_NAMED_BY_TORCH, lambda value: str(value).removeprefix("torch.")),
}
_FROM_TEXT: dict[str, Callable[[Any], Any]] = {
    "NoneType": lambda text: None,
    "bool": bool,
    "int": int,
    "float": float,
    "complex": lambda parts: complex(*map(float, parts)),
    "str": str,
    "device": torch.device,
    "Size": torch.Size,
    **dict.fromkeys([kind.__name__ for kind in _NAMED_BY_TORCH], lambda text: getattr(torch, text)),
}


def constant(value: Any) -> Node | None:
    """Returns the node of a constant; None for a value that is none."""
    to_text = _TO_TEXT.get(type(value))
    if to_text is None:
        return None
    return {"kind": "constant", "type": type(value).__name__, "value": to_text(value)}


def value_of(node: Node) -> Any:
    """Returns the constant of a node."""
    return _FROM_TEXT[node["type"]](node["value"])


def shown(node: Node) -> str:
    """Returns a node in words."""
    if node["kind"] == "constant":
        return repr(value_of(node))
    if node["kind"] == "fields":
        return f"a {node['class']}"
    return f"a {node['kind']}"


def describe(value: Any, leaf: Callable[[Any, str], Node | None], where: str) -> Node:
    """Returns the node of a value. leaf(value, where): the node of a leaf, None for other values.
    where: the value as the program writes it (``x``, ``batch['ids']``).

    Raises CannotDescribe.
    """
    return _describe(value, leaf, where, ())


def _describe(
    value: Any, leaf: Callable[[Any, str], Node | None], where: str, outer: tuple[int, ...]
) -> Node:
    result = leaf(value, where) or constant(value)
    if result is not None:
        return result
    if id(value) in outer:
        raise CannotDescribe(f"{where} contains itself")

    def inner(part: Any, at: str) -> Node:
        return _describe(part, leaf, at, (*outer, id(value)))

    kind = type(value)
    if kind in (list, tuple):
        return {
            "kind": kind.__name__,
            "items": [inner(item, f"{where}[{i}]") for i, item in enumerate(value)],
        }
    if kind in (dict, collections.OrderedDict):
        items = []
        for key, item in value.items():
            described = constant(key)
            if described is None:
                raise CannotDescribe(f"{where} has a {type(key).__name__} as a key")
            items.append([described, inner(item, f"{where}[{key!r}]")])
        return {"kind": "dict", "ordered": kind is not dict, "items": items}
    base, fields = _fields(value)
    if base is None:
        raise CannotDescribe(
            f"{where} is a {kind.__module__}.{kind.__qualname__}; a package takes tensors, plain"
            " values, lists, tuples, dicts, named tuples and dataclasses"
        )
    return {
        "kind": "fields",
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "base": base,
        "fields": [[name, inner(item, f"{where}.{name}")] for name, item in fields],
    }


def _fields(value: Any) -> tuple[str | None, list[tuple[str, Any]]]:
    """Returns what an instance of a class with fields is ("tuple", "sequence" as of torch.max,
    "dict", "object"; None where it is none), and its fields."""
    kind = type(value)
    if issubclass(kind, tuple):
        if hasattr(kind, "_fields"):
            return "tuple", list(zip(kind._fields, value, strict=True))
        if kind.__module__ == "torch.return_types":
            names = getattr(kind, "__match_args__", ())
            return "sequence", list(zip(names, value, strict=True))
        return None, []
    if not dataclasses.is_dataclass(kind) or not all(
        field.init for field in dataclasses.fields(kind)
    ):
        return None, []
    if issubclass(kind, dict):  # which leaves out fields that are None
        return "dict", list(value.items())
    return "object", [(item.name, getattr(value, item.name)) for item in dataclasses.fields(kind)]


def imported_class(node: Node) -> type | None:
    """Returns the class of a ``fields`` node if this process has imported it."""
    module, _, name = node["class"].partition(":")
    attribute: Any = sys.modules.get(module)
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    return attribute if isinstance(attribute, type) else None


def _make_fields(node: Node, values: list[Any]) -> Any:
    names, cls = [name for name, _ in node["fields"]], imported_class(node)
    if node["base"] == "sequence":
        return tuple(values) if cls is None else cls(values)
    if node["base"] == "tuple":
        return tuple(values) if cls is None else cls(*values)
    fields = dict(zip(names, values, strict=True))
    return Fields(fields) if cls is None else cls(**fields)


def builder(node: Node, leaf: Callable[[Node], Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Returns the function that makes the value of a node anew from what `leaf` functions read.
    leaf(node): such a function of a leaf."""
    kind = node["kind"]
    if kind == "constant":
        fixed = value_of(node)
        return lambda inputs: fixed
    if kind in ("list", "tuple"):
        parts = [builder(item, leaf) for item in node["items"]]
        if kind == "list":
            return lambda inputs: [part(inputs) for part in parts]
        return lambda inputs: tuple([part(inputs) for part in parts])
    if kind == "dict":
        pairs = [(value_of(key), builder(item, leaf)) for key, item in node["items"]]
        OrderedDict = collections.OrderedDict if node["ordered"] else dict
        return lambda inputs: OrderedDict([(key, part(inputs)) for key, part in pairs])
    if kind == "fields":
        parts = [builder(item, leaf) for _, item in node["fields"]]
        return lambda inputs: _make_fields(node, [part(inputs) for part in parts])
    return leaf(node)


def leaves(node: Node, value: Any, where: str) -> Iterator[tuple[Node, Any, str]]:
    """Yields (node, value, where) of the leaves of an input that is to have the structure of a
    node. Raises Mismatch."""
    kind = node["kind"]
    if kind == "constant":
        if not _is_same(value_of(node), value):
            raise Mismatch(where, f"the constant {shown(node)}", fields_of(value))
    elif kind in ("list", "tuple"):
        n_items = len(node["items"])
        if type(value).__name__ != kind or not isinstance(value, (list, tuple)):
            raise Mismatch(where, f"{shown(node)} of {n_items}", fields_of(value))
        if len(value) != n_items:
            raise Mismatch(where, f"{shown(node)} of {n_items}", f"one of {len(value)}")
        for i, (item, part) in enumerate(zip(node["items"], value, strict=True)):
            yield from leaves(item, part, f"{where}[{i}]")
    elif kind == "dict":
        keys = [value_of(key) for key, _ in node["items"]]
        if not isinstance(value, dict):
            raise Mismatch(where, f"a dict with the keys {keys}", fields_of(value))
        if list(value) != keys:
            raise Mismatch(
                where, f"a dict with the keys {keys} in this order", f"one with {list(value)}"
            )
        for (_, first), (key, part) in zip(node["items"], value.items(), strict=True):
            yield from leaves(first, part, f"{where}[{key!r}]")
    elif kind == "fields":
        cls = type(value)
        if (
            not isinstance(value, Fields)
            and f"{cls.__module__}:{cls.__qualname__}" != node["class"]
        ):
            raise Mismatch(where, shown(node), fields_of(value))
        field = _fields(value)[1] if not isinstance(value, Fields) else list(value.items())
        names = [name for name, _ in node["fields"]]
        if [name for name, _ in field] != names:
            raise Mismatch(
                where, f"{shown(node)} with {names}", f"one with {[name for name, _ in field]}"
            )
        for (name, element), (_, part) in zip(node["fields"], field, strict=True):
            yield from leaves(element, part, f"{where}.{name}")
    else:
        yield node, value, where


def _is_same(expected: Any, value: Any) -> bool:
    if type(value) is not type(expected):
        return False
    if isinstance(expected, float):
        both_nan = math.isnan(expected) and math.isnan(value)
        return both_nan or (expected == value and repr(expected) == repr(value))
    return bool(expected == value)


def fields_of(value: Any) -> str:
    """Returns a value that a user gave in words."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {dtype} tensor of sizes {tuple(value.shape)} on {value.device}"
    if type(value) in _TO_TEXT:
        return repr(value)[:80]
    return f"a {type(value).__name__}"
