"""What a program can see of its world, as text that two runs must share.

In: any objects. Out: `describe(...)`, one line a fact; objects met a second time are named by
number, so that which references are the same object, and which tensors share memory, are part of
the description. What always holds: describing changes nothing; addresses never appear.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import logging
import re
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy
import torch

import tracer_core

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    torch.dtype,
    torch.device,
    torch.Size,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    slice,
    type(Ellipsis),
)
_BY_NAME = (types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType,
types.WrapperDescriptorType,
enum.Enum,
            types.MethodWrapperType, types.CodeType, types.GenericAlias,
            logging.Logger)  # fmt: skip
#: Iterators that a program may return: what is left in them is compared, at most so many items.
_ITERATORS = (types.GeneratorType, map, filter, zip, enumerate, reversed)
_MANY = 20


class _Describer:
    """Mutable: numbers of objects and storages, lines so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.alive: list[Any] = []

    def add(self, path: str, obj: Any) -> None:
        if _is_plain(obj) or obj is NotImplemented:
            self.lines.append(f"{path} = {type(obj).__name__} {obj!r}")
            return
        if isinstance(obj, _BY_NAME):
            name = (
                obj.name
                if isinstance(obj, enum.Enum)
                else getattr(obj, "__qualname__", None) or getattr(obj, "__name__", "?")
            )
            self.lines.append(f"{path} = {type(obj).__name__} {name}")
            return
        known = self.numbers.get(id(obj))
        if known is not None:
            self.lines.append(f"{path} = #{known}")
            return
        number = self.numbers[id(obj)] = len(self.numbers)
        self.alive.append(obj)
        self.lines.append(
            f"{path} = #{number} {type(obj).__module__.replace('builtins', '')}.{type(obj).__qualname__}"
        )
        for kinds, how in _PARTS:
            if isinstance(obj, kinds):
                for name, part in how(self, path, obj):
                    self.add(f"{path}{name}", part)
                return
        for name, part in _attributes(obj):
            self.add(f"{path}{name}", part)

    def storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        self.alive.append(storage)
        return self.storages.setdefault(storage._cdata, len(self.storages))


def _is_plain(obj: Any) -> bool:
    """Immutable all the way down: Python promises nothing about its identity."""
    return (
        type(obj) in _PLAIN
        or isinstance(obj, numpy.generic)
        or (type(obj) in (tuple, frozenset) and all(map(_is_plain, obj)))
    )


Parts = Iterable[tuple[str, Any]]


def _attributes(obj: Any) -> Parts:
    actual = dict(getattr(obj, "__dict__", None) or {})
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                try:
                    actual[name] = object.__getattribute__(obj, name)
                except AttributeError:
                    pass
    return [(f".{name}", value) for name, value in actual.items()]


def _sequence(d: _Describer, path: str, obj: Any) -> Parts:
    d.lines.append(
        f"{path} has {len(tuple(type(obj).__mro__))} bases, {sum(1 for _ in _base_iterator(obj))} items"
    )
    items = [(f"[{i}]", item) for i, item in enumerate(_base_iterator(obj))]
    if isinstance(obj, collections.deque):
        items.append((".maxlen", obj.maxlen))
    return [*items, *_attributes(obj)]


def _base_iterator(obj: Any) -> Any:
    """The items, whatever a subclass says about iteration."""
    base = next(kind for kind in (list, tuple, collections.deque) if isinstance(obj, kind))
    return base.__iter__(obj)


def _set(d: _Describer, path: str, obj: Any) -> Parts:
    return [(f"{{{i}}}", item) for i, item in enumerate(sorted(obj, key=_order))]


def _order(item: Any) -> tuple[str, str, int]:
    return (
        type(item).__name__,
        repr(item),
        item.storage_offset() if isinstance(item, torch.Tensor) else 0,
    )


def _dict(d: _Describer, path: str, obj: Any) -> Parts:
    parts: list[tuple[str, Any]] = []
    # The order of its base means nothing.
    kind: Any = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
    for i, (key, value) in enumerate(kind.items(obj)):
        if type(key) in _PLAIN:
            parts.append((f"[{type(key).__name__} {key!r}]", value))
        else:
            parts += [(f"<key {i}>", key), (f"<value {i}>", value)]
    if isinstance(obj, collections.defaultdict):
        parts.append((".default_factory", obj.default_factory))
    d.lines.append(
        f"{path} has keys in order {[repr(k) if type(k) in _PLAIN else '?' for k in kind.keys(obj)]}"
    )
    return [*parts, *_attributes(obj)]


def _tensor(d: _Describer, path: str, obj: torch.Tensor) -> Parts:
    eager = obj.detach()
    d.lines.append(
        f"{path} is {obj.dtype} {tuple(obj.shape)} strides {obj.stride()} offset {obj.storage_offset()} storage {d.storage(obj)} "
        f"grad {obj.requires_grad} leaf {obj.is_leaf}"
    )
    values = eager.to(torch.float64) if eager.is_floating_point() else eager
    d.lines.append(f"{path} holds {values.reshape(-1).tolist()}")
    parts = [(".grad", obj.grad)] if obj.is_leaf and obj.grad is not None else []
    return [*parts, *[(f".{k}", v) for k, v in obj.__dict__.items()]]


_LIBRARIES = tuple(str(Path(value.__file__).parent) for value in (torch, tracer_core))


def _function(d: _Describer, path: str, obj: types.FunctionType) -> Parts:
    if obj.__code__.co_filename.startswith(_LIBRARIES):  # torch's, or one that does the same
        d.lines.append(f"{path} runs {obj.__qualname__}")
        return []
    d.lines.append(f"{path} runs {obj.__qualname__}:{obj.__code__.co_firstlineno}")
    parts: list[tuple[str, Any]] = [
        (".__defaults__", obj.__defaults__),
        (".__kwdefaults__", obj.__kwdefaults__),
    ]
    parts += [(f".__closure__[{i}]", cell) for i, cell in enumerate(obj.__closure__ or ())]
    return [*parts, *[(f".{k}", v) for k, v in obj.__dict__.items() if k != "__wrapped__"]]


def _cell(d: _Describer, path: str, obj: types.CellType) -> Parts:
    try:
        return [(".contents", obj.cell_contents)]
    except ValueError:
        d.lines.append(f"{path} is empty")
        return []


def _class(d: _Describer, path: str, obj: type) -> Parts:
    d.lines.append(
        f"{path} is class {obj.__qualname__}({', '.join(b.__qualname__ for b in obj.__bases__)})"
    )
    if obj.__module__ in ("builtins", "collections", "enum") or obj.__module__.startswith(
        ("torch", "tracer_core")
    ):
        return []
    hidden = (
        "__dict__",
        "__weakref__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__static_attributes__",
        "__firstlineno__",
    )
    return [
        (f".{k}", v)
        for k, v in obj.__dict__.items()
        if k not in hidden and not k.startswith(("__dataclass", "_abc", "_member", "_value",
        "__match",
        "__slotnames__"))
        and not isinstance(v, (types.GetSetDescriptorType, types.MemberDescriptorType))
    ]  # fmt: skip


def _exception(d: _Describer, path: str, obj: BaseException) -> Parts:
    parts: list[tuple[str, Any]] = [(".args", obj.args), *_attributes(obj)]
    for name in ("__cause__", "__context__", "__suppress_context__"):
        value = getattr(obj, name)
        if value is not None and value is not False:
            parts.append((f".{name}", value))
    return parts


def _iterator(d: _Describer, path: str, obj: Any) -> Parts:
    parts: list[tuple[str, Any]] = []
    try:
        for i in range(_MANY):
            parts.append((f" yields {i}", next(obj)))
    except StopIteration as stop:
        parts.append((" returns", stop.value))
    except Exception as error:
        parts.append((" raises", error))
    return parts


def _module(d: _Describer, path: str, obj: torch.nn.Module) -> Parts:
    hidden = (
        "_forward_hooks_always_called",
        "_non_persistent_buffers_set",
        "_is_full_backward_hook",
        "_compiled_call_impl",  # torch's slot: set where a module is compiled
    )
    return [(f".{k}", v) for k, v in obj.__dict__.items() if k not in hidden]


_PARTS: tuple[tuple[Any, Callable[[_Describer, str, Any], Parts]], ...] = (
    (torch.Tensor, _tensor), (torch.nn.Module, _module), (dict, _dict),
    ((list, tuple, collections.deque), _sequence), ((set, frozenset), _set),
    (types.FunctionType, _function), (types.CellType, _cell), (type, _class), (BaseException,
    _exception),
    (_ITERATORS, _iterator),
    (types.MethodType, lambda d, p, o: [(".__func__", o.__func__), (".__self__", o.__self__)]),
    (functools.partial, lambda d, p, o: [(".func", o.func), (".args", o.args), (".keywords",
    o.keywords)]),
    ((staticmethod, classmethod), lambda d, p, o: [(".__func__", o.__func__)]),
    (property, lambda d, p, o: [(".fget", o.fget), (".fset", o.fset)]),
    (functools._lru_cache_wrapper, lambda d, p, o: []), (dataclasses.Field, lambda d, p, o: []),
    (types.MappingProxyType, lambda d, p, o: [("", repr(o))]),
    ((type({}.keys()), type({}.values()), type({}.items())), lambda d, p, o: [("", list(o))]),
)  # fmt: skip


def describe(roots: Iterable[tuple[str, Any]]) -> list[str]:
    """The facts about everything that can be reached from the roots, in one fixed order."""
    describer = _Describer()
    for name, obj in roots:
        describer.add(name, obj)
    return [_ADDRESS.sub("0x", line) for line in describer.lines]


def first_difference(wanted: list[str], got: list[str]) -> str | None:
    """Where two descriptions part, or None."""
    for want, have in zip(wanted, got, strict=False):
        if want != have:
            return f"{have}   (eager: {want})"
    if len(wanted) != len(got):
        longer, which = (wanted, "eager") if len(wanted) > len(got) else (got, "compiled")
        return f"only {which}: {longer[min(len(wanted), len(got))]}"
    return None
