"""Emits the lines that reconstruct objects of Python classes, exceptions and classes made in a
trace.

An object is made of its parts: the contents of its C base, its slots and its dictionary. No code of
its class runs.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import collections
import types
from collections.abc import Callable
from types import GetSetDescriptorType, NoneType
from typing import Any

from tracer_core.bytecode.annotations import DEFERRED
from tracer_core.bytecode.tracebacks import rebuilt as rebuilt_traceback
from tracer_core.graph_breaks import Restart
from tracer_core.guards.object_layout import HEAP_TYPE, IMMUTABLE_TYPE
from tracer_core.guards.value_kinds import instances_have
from tracer_core.reconstruct.containers import ContainerRebuilder
from tracer_core.reconstruct.emitter import CannotRebuild
from tracer_core.reconstruct.runtime import new_exception
from tracer_core.trace.class_creation import GENERATED, bare_class, fill_class, make_enum
from tracer_core.trace.special_methods import GROUPS_PRINT_THEIR_MEMBERS, check_hashed_again

#: Names that a metaclass has descriptors for, which setattr() of a class puts into its namespace.
_SET_AS_ENTRIES = GENERATED | {"__module__", "__qualname__", "__doc__", "__annotations__",
                               "__abstractmethods__", "__type_params__"}  # fmt: skip
#: Names of entries that setattr() of a class cannot put into its namespace. Since 3.14 the names of
#: annotations stand for other entries there.
_GIVEN_AT_ONCE = ("__dict__", "__weakref__",
                  *(("__annotations__", "__annotate__") if DEFERRED else ()))  # fmt: skip


class ObjectRebuilder(ContainerRebuilder):
    """The class part of `Rebuilder` (see there)."""

    # -- objects of classes --

    def _instance(self, obj: Any, base: type) -> str:
        """Emits an object of a Python class: an empty one of its class, then the contents of each
        base."""
        name = _BASES[base](self, obj, f"{self.constant(base)}.__new__({self._value(type(obj))}")
        self._pending.append(lambda: self._set_parts(name, obj))
        return name

    def _set_parts(self, name: str, obj: Any) -> None:
        self._set_slots(name, obj)
        try:
            attributes = object.__getattribute__(obj, "__dict__")
        except AttributeError:
            return
        self._set_attributes(name, attributes)

    def _set_slots(self, name: str, obj: Any) -> None:
        for cls in type(obj).__mro__:
            if not cls.__flags__ & HEAP_TYPE:
                continue
            for slot, descriptor in cls.__dict__.items():
                if not isinstance(descriptor, types.MemberDescriptorType):
                    continue
                if descriptor.__objclass__ is not cls:  # borrowed, or of a base that has it too
                    continue
                try:
                    value = descriptor.__get__(obj, type(obj))
                except AttributeError:
                    continue
                built = id(cls) in self._classes
                text = (
                    f"{self._value(cls)}.__dict__[{slot!r}]" if built else self.constant(descriptor)
                )
                self.lines.append(f"{text}.__set__({name}, {self._value(value)})")

    def _plain(self, obj: Any, text: str) -> str:
        return self._new(obj, f"{text})")

    def _of_list(self, obj: Any, text: str) -> str:
        return self._list(obj, f"{text})")

    def _of_dict(self, obj: Any, text: str) -> str:
        name = self._dict(obj, f"{text})")
        if isinstance(obj, collections.defaultdict):
            factory = self.constant(collections.defaultdict.__dict__["default_factory"])
            self.lines.append(f"{factory}.__set__({name}, {self._value(obj.default_factory)})")
        return name

    def _of_deque(self, obj: Any, text: str) -> str:
        name = self._new(obj, f"{text})")
        self.lines.append(
            f"{self.constant(collections.deque)}.__init__({name}, (), {obj.maxlen!r})"
        )
        self._pending.append(
            lambda: self._extend(name, "deque_extend", collections.deque.__iter__(obj))
        )
        return name

    def _of_set(self, obj: Any, text: str) -> str:
        return self._set(obj, f"{text})")

    def _of_items(self, obj: Any, result: str) -> str:
        base = tuple if isinstance(obj, tuple) else frozenset
        if base is frozenset:
            check_hashed_again(self.tracer, list(frozenset.__iter__(obj)))
        text = self._items(base.__iter__(obj))
        known = self._memo.get(id(obj))
        return known or self._new(obj, f"{result}, [{text}])")

    def _of_value(self, obj: Any, text: str) -> str:
        base = next(kind for kind in _VALUES if isinstance(obj, kind))
        return self._new(obj, f"{text}, {self.constant(_VALUES[base](obj))})")

    # -- exceptions --

    def _exception(self, obj: BaseException) -> str:
        """Emits an exception without running the user's ``__init__`` again."""
        args = BaseException.args.__get__(obj)  # type: ignore[attr-defined]
        items = args
        if isinstance(obj, BaseExceptionGroup):  # a subclass may take more arguments than these two
            if GROUPS_PRINT_THEIR_MEMBERS and not all(
                isinstance(arg, (list, tuple)) for arg in args[1:2]
            ):
                raise self._no_way(obj)  # it keeps the text of what it was made of
            items = tuple(member.__get__(obj) for member in _PARTS_OF_GROUP)
        self._items((args, items))
        known = self._made_meanwhile(obj)
        if known is not None:
            return known
        name = self._call(obj, new_exception, type(obj), items, args)
        self._pending.append(lambda: self._fill_exception(name, obj))
        return name

    def _fill_exception(self, name: str, obj: BaseException) -> None:
        for cls in type(obj).__mro__:
            if cls.__flags__ & HEAP_TYPE or cls is object:
                continue
            for field, descriptor in cls.__dict__.items():
                if isinstance(descriptor, types.MemberDescriptorType) and not field.startswith(
                    "__"
                ):
                    value = descriptor.__get__(obj, type(obj))
                    if value is not None and _writable(descriptor, obj, value):
                        self.lines.append(
                            f"{self.constant(descriptor)}.__set__({name}, {self._value(value)})"
                        )
        passed = self.tracer.exceptions.frames_passed(obj)
        if passed:
            trace = self._tracebacks.get(id(passed))
            if trace is None:
                trace = f"{self.constant(rebuilt_traceback)}({self.constant(passed)})"
                self._tracebacks[id(passed)] = f"{name}.__traceback__"
            self.lines.append(f"{name}.__traceback__ = {trace}")
        elif self.tracer.exceptions.has_seen(obj.__traceback__):
            self.lines.append(f"{name}.__traceback__ = {self._value(obj.__traceback__)}")
        for field in ("__cause__", "__context__"):
            linked = getattr(obj, field)
            if linked is not None:
                self.lines.append(f"{name}.{field} = {self._value(linked)}")
        if obj.__suppress_context__:
            self.lines.append(f"{name}.__suppress_context__ = True")
        self._set_parts(name, obj)

    # -- classes made here --

    def _class(self, result: Any) -> str:
        """Emits a class made in the trace, empty first: its functions may refer to it."""
        cls = result.cls
        try:
            if result.recipe:
                entries = ", ".join(
                    f"({k!r}, {self._value(v)})" for k, v in result.recipe["entries"]
                )
                maker, keywords = self.constant(make_enum), self._value(result.recipe["keywords"])
                parts = (
                    f"{self._value(type(cls))}, {cls.__name__!r}, {self._value(result.recipe['bases'])},"
                    f" [{entries}]"
                )
                return self._new(cls, f"{maker}({parts}, {keywords})")
            for key in cls.__dict__.keys() - _SET_AS_ENTRIES - set(_GIVEN_AT_ONCE):
                if _sets(type(cls), key):
                    raise CannotRebuild(f"its metaclass sets {key}", type(cls))
            first = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
            if "__slots__" in cls.__dict__:
                first["__slots__"] = cls.__dict__["__slots__"]
            for key in _GIVEN_AT_ONCE:  # a class body may define its own
                if not isinstance(value := cls.__dict__.get(key), (NoneType, GetSetDescriptorType)):
                    first[key] = value
            parts = (
                f"{self._value(type(cls))}, {cls.__name__!r}, {self._value(cls.__bases__)},"
                f" {self._value(first)}"
            )
            known = self._made_meanwhile(cls)  # __slots__ may be a list
            if known is not None:
                return known
            name = self._new(cls, f"{self.constant(bare_class)}({parts})")
            entries = ", ".join(
                f"({key!r}, {self._value(value)})"
                for key, value in cls.__dict__.items()
                if key not in GENERATED
                and key not in first
                and not (
                    isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls
                )
            )
        except CannotRebuild as error:
            reason = (
                f"the class {cls.__name__} outlives the region and cannot be made again: {error}"
            )
            raise Restart(result.allocation_step, "class_statement", reason) from error
        self.lines.append(f"{self.constant(fill_class)}({name}, [{entries}])")
        if "_abc_impl" in cls.__dict__:
            self._fill_pending()  # attributes of functions: __isabstractmethod__
            self.lines.append(f"{self.constant(_abc._abc_init)}({name})")
        return name


_PARTS_OF_GROUP: tuple[Any, ...] = (BaseExceptionGroup.message, BaseExceptionGroup.exceptions)


def _sets(metaclass: type, name: str) -> bool:
    """Returns whether a metaclass has a descriptor that takes the values of a class attribute."""
    owner = next((item for item in metaclass.__mro__ if name in item.__dict__), None)
    return owner is not None and hasattr(type(owner.__dict__[name]), "__set__")


def _writable(descriptor: Any, obj: Any, value: Any) -> bool:
    try:
        descriptor.__set__(obj, value)
    except (AttributeError, TypeError):
        return False
    return True


def base_of(cls: Any) -> type | None:
    """Returns the C base that makes objects of a Python class; None if the class is itself a C
    class or no way is known to make its objects empty."""
    if (
        not cls.__flags__ & HEAP_TYPE
        or cls.__flags__ & IMMUTABLE_TYPE
        or (issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields"))
    ):
        return None if cls is not types.SimpleNamespace else cls
    base: Any = next((kind for kind in cls.__mro__ if kind in _BASES), None)
    if base is None or instances_have(cls, "__del__"):
        return None
    try:
        base.__new__(cls)  # CPython raises if another base has to make the object
    except TypeError:
        return None
    return base  # type: ignore[no-any-return]


#: Immutable bases -> how to read their value without a method of the subclass.
_VALUES: dict[type, Callable[[Any], Any]] = {
    int: lambda v: int.__index__(v),
    float: lambda v: float.__float__(v),
    complex: lambda v: complex.__complex__(v),
    str: lambda v: str.__str__(v),
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
}

_BASES: dict[type, Callable[[ObjectRebuilder, Any, str], str]] = {
    object: ObjectRebuilder._plain,
    types.SimpleNamespace: ObjectRebuilder._plain,
    collections.deque: ObjectRebuilder._of_deque,
    list: ObjectRebuilder._of_list,
    dict: ObjectRebuilder._of_dict,
    collections.OrderedDict: ObjectRebuilder._of_dict,
    collections.defaultdict: ObjectRebuilder._of_dict,
    set: ObjectRebuilder._of_set,
    tuple: ObjectRebuilder._of_items,
    frozenset: ObjectRebuilder._of_items,
    **dict.fromkeys(_VALUES, ObjectRebuilder._of_value),
}
