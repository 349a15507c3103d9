"""Traces the creation of classes: class statements and ``type(name, bases, namespace)``.

The body, ``__prepare__``, ``__set_name__``, ``__init_subclass__`` and metaclasses written in Python
are interpreted, never run by the host interpreter. The result is a real class without a source,
whose contents are read without guards.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracer_core.bytecode.code import decode
from tracer_core.bytecode.frame import NULL, Frame, contents
from tracer_core.graph_breaks import Break, Restart, RunEagerly
from tracer_core.guards.value_kinds import instances_have, is_constant
from tracer_core.trace.attribute_lookup import Entries, has_python, hides_class, is_subtype

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Entries that the class statement itself adds to a class.
GENERATED = frozenset({"__dict__", "__weakref__", "__classcell__", "_abc_impl"})
_WRAPPERS = (staticmethod, classmethod)


_HASH = Entries.static(type, "__hash__")


class _Quiet:
    """A base that hides ``__init_subclass__`` of the bases after it while a class is made."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        pass


class _QuietWithDict:
    """`_Quiet` for bases whose instances have a dictionary: the layouts must agree."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


def quiet_class(meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """Makes a class without notifying its bases, with the layout of a class statement."""
    failure = None
    for quiet in _quiet_bases(bases):
        try:
            created: Any = type.__new__(meta, name, (quiet, *bases), dict(namespace))
            created.__bases__ = bases
        except TypeError as error:
            failure = error
        else:
            return created
    raise BasesMustKnow(f"{name} cannot be made without telling its bases") from failure


class BasesMustKnow(TypeError):
    """A class needs a layout that only a class statement gives it."""


def _quiet_bases(bases: tuple[type, ...]) -> Iterator[type]:
    """Yields quiet classes of different layouts; one of them has that of the class to be made."""
    yield from (_Quiet, _QuietWithDict)
    for base in bases:
        above = base.__base__
        if above not in (None, object):
            yield bare_class(
                type(above), "_Quiet", (above,), {"__init_subclass__": lambda cls, **_: None}
            )


def bare_class(meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
    """Runs ``type.__new__`` without a Python ``__init_subclass__``; for generated code too."""
    if _any_hooked(bases):
        return quiet_class(meta, name, bases, namespace)
    return type.__new__(meta, name, bases, dict(namespace))


def fill_class(cls: type, entries: list[tuple[str, Any]]) -> None:
    """Sets entries of an empty class without its metaclass; for generated code too."""
    for name, value in entries:
        type.__setattr__(cls, name, value)
        if type(value) is property and hasattr(value, "__set_name__"):
            value.__set_name__(cls, name)


def put_back(cls: type, before: dict[str, Any]) -> None:
    """Gives a class the entries that it had before."""
    for name in cls.__dict__.keys() - before.keys():
        type.__delattr__(cls, name)
    for name, value in before.items():
        if cls.__dict__[name] is not value:
            type.__setattr__(cls, name, value)


def _any_hooked(bases: tuple[Any, ...]) -> bool:
    """Returns whether a base has an ``__init_subclass__`` of its own."""
    simple = object.__dict__["__init_subclass__"]
    result = (Entries.static(base, "__init_subclass__") for base in bases if isinstance(base, type))
    return any(hook is not simple for hook in result)


class _Later:
    """Placeholder in a namespace for a value whose ``__set_name__`` has to be interpreted."""


# -- the class statement
# ----------------------------------------------------------------------------------


def build_class(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Traces ``__build_class__(body, name, *bases, metaclass=, **keywords)``."""
    body, name, *written = args
    if type(body) is not types.FunctionType or not isinstance(name, str):
        raise Break("native_python", "the arguments do not fit __build_class__()")
    keywords = dict(kwargs)
    bases = _resolve_bases(tracer, written)
    meta = keywords.pop("metaclass", None)
    if meta is None:
        meta = type(bases[0]) if bases else type
    if isinstance(meta, type):
        meta = winner(meta, bases)
    _refuse(tracer, bases, meta, name)
    if isinstance(meta, type) and issubclass(meta, enum.EnumMeta):
        return _build_enum(tracer, body, meta, name, bases, keywords)
    namespace = _prepare(tracer, meta, name, bases, keywords)
    cell = run_body(tracer, body, namespace)
    if bases != tuple(written):
        tracer.containers.setitem(namespace, "__orig_bases__", tuple(written))
    result = tracer.calls.call_value(meta, [name, bases, namespace], keywords)
    if isinstance(result, type) and type(cell) is types.CellType:
        _check_cell(cell, result, name)
    return result


def _resolve_bases(tracer: Tracer, written: list[Any]) -> tuple[Any, ...]:
    bases: list[Any] = []
    for base in written:
        entries = None
        if not isinstance(base, type):
            entries = tracer.attributes.getattr_or(base, "__mro_entries__", None)
        if entries is None:
            bases.append(base)
            continue
        result = tracer.calls.call_value(entries, [tuple(written)], {})
        if not isinstance(result, tuple):
            raise TypeError("__mro_entries__ must return a tuple")
        bases += result
    return tuple(bases)


def winner(meta: type, bases: tuple[Any, ...]) -> type:
    """Returns the most derived metaclass."""
    for base in bases:
        other = type(base)
        if is_subtype(meta, other):
            continue
        if is_subtype(other, meta):
            meta = other
            continue
        raise TypeError(
            "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass"
            " of the metaclasses of all its bases"
        )
    return meta


def _refuse(tracer: Tracer, bases: tuple[Any, ...], meta: Any, name: str) -> None:
    classes = [base for base in bases if isinstance(base, type)]
    if any(issubclass(base, torch.Tensor) for base in classes):
        raise Break("tensor_subclass", f"the tensor subclass {name} is made")
    if any(issubclass(base, torch.autograd.Function) for base in classes):
        raise Break("higher_order", f"the autograd.Function {name} is made")
    if isinstance(meta, type) and Entries.static(meta, "__hash__") is not _HASH:
        raise Break("class_statement", f"the metaclass of {name} has a __hash__ of its own")
    if isinstance(meta, type) and has_python(Entries.static(meta, "mro")):
        raise Break("class_statement", f"the metaclass of {name} has its own mro()")
    if isinstance(meta, type) and hides_class(meta):
        raise RunEagerly(f"the metaclass of {name} answers for what {name} is made of")


def _prepare(
    tracer: Tracer, meta: Any, name: str, bases: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    prepare = None
    if meta is not type:
        prepare = tracer.attributes.getattr_or(meta, "__prepare__", None)
    if prepare is None or isinstance(prepare, types.BuiltinFunctionType):  # type.__prepare__
        return {}
    namespace = tracer.calls.call_value(prepare, [name, bases], keywords)
    if not instances_have(type(namespace), "__getitem__"):
        kind = meta.__name__ if isinstance(meta, type) else "<metaclass>"
        returned = tracer.exceptions.type_name(namespace)
        raise TypeError(f"{kind}.__prepare__() must return a mapping, not {returned}")
    return namespace


def run_body(tracer: Tracer, body: types.FunctionType, namespace: Any) -> Any:
    """Runs a class body with its names in `namespace`; returns the ``__class__`` cell or None."""
    code = decode(body.__code__)
    if code.unsupported:
        raise Break("unsupported_opcode", f"a class body uses {code.unsupported}")
    tracer.calls.interpreted[body.__code__] = body
    frame = Frame(body, code)
    frame.namespace = namespace
    return tracer.calls.run_nested(frame)


def _check_cell(cell: types.CellType, cls: type, name: str) -> None:
    result = contents(cell)
    if result is NULL:
        raise RuntimeError(
            f"__class__ not set defining {name!r} as {cls!r}. Was __classcell__ propagated to"
            " type.__new__?"
        )
    if result is not cls:
        raise TypeError(f"__class__ set to {result!r} defining {name!r} as {cls!r}")


# -- type(name, bases, namespace)
# --------------------------------------------------------------------------


def new_class(tracer: Tracer, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Traces ``type.__new__(meta, name, bases, namespace, **keywords)``."""
    if len(args) != 4 or not isinstance(args[0], type):
        raise Break("class_statement", "type.__new__ is called in an unusual way")
    meta, name, bases, namespace = args
    if not (isinstance(name, str) and isinstance(bases, tuple) and isinstance(namespace, dict)):
        raise Break("native_python", "the arguments do not fit type.__new__()")
    if not all(isinstance(base, type) for base in bases):
        type.__new__(meta, name, bases, {})  # raises Python's own error
    best = winner(meta, bases)
    if best is not meta:
        other = tracer.entries.class_entry(best, "__new__")[1]
        if isinstance(other, staticmethod):
            return tracer.calls.call_value(other.__func__, [best, name, bases, namespace], kwargs)
        meta = best
    _refuse(tracer, bases, meta, name)
    if issubclass(meta, enum.EnumMeta):
        raise Break("class_statement", f"the enumeration {name} is made by a call")
    entries = tracer.containers.mapping(namespace)
    if any(type(key) is not str for key in entries):  # each look-up may run the program's code
        raise RunEagerly(f"{name} has an entry whose name is no str")
    calling = tracer.frames[-1].globals
    if "__module__" not in entries and "__name__" in calling:
        entries["__module__"] = calling["__name__"]
    later = {
        key: value
        for key, value in entries.items()
        if tracer.entries.python_method(value, "__set_name__")
    }
    entries.update(dict.fromkeys(later, _Later()))
    hooked = _any_hooked(bases)
    if kwargs and not hooked:
        created: Any = type.__new__(
            meta, name, bases, entries, **kwargs
        )  # raises Python's own error
    else:
        try:
            created = bare_class(meta, name, bases, entries)
        except BasesMustKnow as error:
            raise Break("class_statement", str(error)) from error
    note_class(tracer, created)
    for key, value in later.items():
        type.__setattr__(created, key, value)
    for key, value in later.items():
        _set_name(tracer, created, key, value)
    if hooked:
        tracer.calls.call_value(
            tracer.attributes.super_attribute(created, created, "__init_subclass__"), [], kwargs
        )
        for value in created.__dict__.values():  # typing's __init_subclass__ runs eagerly
            note_functions(tracer, value)
    return created


def _set_name(tracer: Tracer, cls: type, key: str, value: Any) -> None:
    method = tracer.entries.python_method(value, "__set_name__")
    try:
        tracer.calls.call_value(method, [value, cls, key], {})
    except (Break, Restart, RunEagerly):
        raise
    except BaseException as error:
        text = (
            f"Error calling __set_name__ on '{type(value).__name__}' instance {key!r} in"
            f" '{cls.__name__}'"
        )
        if sys.version_info >= (3, 12):
            error.add_note(text)
            raise
        raise RuntimeError(text) from error


def note_class(tracer: Tracer, cls: type, **recipe: Any) -> None:
    """Registers a class made by the trace, and the functions in it. recipe: how to make the class
    again, where its contents do not tell."""
    tracer.entries.classes[id(cls)] = MadeClass(cls, tracer.outer_step, recipe)
    tracer.entries.note_class(cls)
    for value in cls.__dict__.values():
        note_functions(tracer, value)


def note_functions(tracer: Tracer, value: Any) -> None:
    if isinstance(value, _WRAPPERS):
        value = value.__func__
    is_property = isinstance(value, property)
    for item in (value.fget, value.fset, value.fdel) if is_property else (value,):
        if (
            type(item) is types.FunctionType
            and tracer.provenance.source_of(item) is None
            and not _is_global(item)
        ):
            tracer.names.register(item)


def _is_global(function: types.FunctionType) -> bool:
    """Returns whether a module defines the function: a library has put it into the class, and knows
    it by identity (typing's ``__init__`` of protocols)."""
    module = sys.modules.get(function.__module__)
    return module is not None and vars(module).get(function.__qualname__) is function


class MadeClass(NamedTuple):
    """A class made by the trace. allocation_step: step of the class statement in the outermost chain."""

    cls: type
    allocation_step: int
    recipe: dict[str, Any]


# -- enumerations
# -------------------------------------------------------------------------------------------

#: Names whose presence makes the enum machinery call user code.
ENUM_HOOKS = frozenset(
    {
        "__new__",
        "__init__",
        "_generate_next_value_",
        "_missing_",
        "__init_subclass__",
        "__set_name__",
    }
)


def _build_enum(
    tracer: Tracer,
    body: Any,
    meta: type,
    name: str,
    bases: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    """Makes an enumeration of constants with the standard library, from the values that the
    interpreted body stored."""
    hooked = any(
        has_python(getattr(owner.__dict__.get(hook), "__func__", owner.__dict__.get(hook)))
        for base in bases
        for owner in base.__mro__
        for hook in ENUM_HOOKS
        if owner.__module__ != "enum"
    )
    if meta is not enum.EnumMeta or hooked:
        raise Break(
            "class_statement", f"the enumeration {name} runs code of its own while it is made"
        )
    namespace: Any = meta.__prepare__(name, bases, **keywords)
    run_body(tracer, body, namespace)
    entries = list(dict.items(namespace))
    for key, value in entries:
        check_enum_entry(key, value)
    result = meta(name, bases, namespace, **keywords)
    note_class(tracer, result, bases=bases, entries=entries, keywords=keywords)
    return result


def check_enum_entry(name: str, value: Any) -> None:
    """Breaks at a value that an enumeration cannot be made of again: the one that the class body
    stores, and what the enumeration's namespace keeps of it."""
    if not _is_enum_entry(value):
        raise Break("class_statement", f"an enumeration has {name!r}, which is not a plain value")


def _is_enum_entry(value: Any) -> bool:
    if type(value) is tuple and any(type(item) is enum.auto for item in value):
        return all(map(_is_enum_entry, value))
    return is_constant(value) or isinstance(
        value, (types.FunctionType, *_WRAPPERS, property, enum.auto)
    )


def make_enum(
    meta: Any,
    name: str,
    bases: tuple[Any, ...],
    entries: list[tuple[str, Any]],
    keywords: dict[str, Any],
) -> Any:
    """Makes an enumeration from its numbered members; for generated code."""
    namespace = meta.__prepare__(name, bases, **keywords)
    for key, value in entries:
        namespace[key] = value
    return meta(name, bases, namespace, **keywords)
