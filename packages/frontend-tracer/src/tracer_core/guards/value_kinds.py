"""Kinds of values: which a guard compares by equality, and which by identity."""

from __future__ import annotations

import datetime
import enum
import fractions
import functools
import re
import sys
import types
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.guards.guard import REPR_TYPES
from tracer_core.guards.numpy_types import CYTHON
from tracer_core.torch_private.names import classes

#: Immutable types that may hold a user-defined time zone.
_ZONED = (datetime.datetime, datetime.time)

#: Immutable types that are guarded by value and then used as constants.
CONSTANT_TYPES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range,
     torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, re.Pattern,
     *REPR_TYPES}
)  # fmt: skip

#: Types whose instances are guarded by identity; their contents are guarded when read.
IDENTITY_TYPES = (
    types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, types.CodeType,
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, enum.Enum, property, staticmethod,
    classmethod, *CYTHON, functools._lru_cache_wrapper,
    *classes("OpOverload OpOverloadPacket _OpNamespace _Ops", of="_ops"),
    *classes("_C._SDPBackend"),
)  # fmt: skip


def instances_have(cls: type, name: str) -> bool:
    """Returns whether a class gives its instances an attribute; hasattr() would find those of the
    metaclass, such as the ``__getitem__`` of enumerations."""
    return any(name in base.__dict__ for base in cls.__mro__)


def is_constant(value: Any) -> bool:
    """Returns whether a value is guarded by equality: immutable at every depth."""
    kind = type(value)
    if kind is torch.Size:  # that of a tensor with symbolic sizes is no constant
        return all(type(size) is int for size in value)
    if kind is fractions.Fraction:  # of any kind of integers
        return type(value._numerator) is int is type(value._denominator)
    if kind in CONSTANT_TYPES:
        return kind not in _ZONED or type(value.tzinfo) in (type(None), datetime.timezone)
    if kind in (tuple, frozenset):
        return all(map(is_constant, value))
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    return torch_private.is_placement(kind)


#: Types of constants of which several equal objects may exist.
WITH_EQUALS = frozenset({int, float, complex, str, bytes, tuple, frozenset})
#: The integers of which CPython has one object each.
INTERNED = range(-5, 257)


def may_be_one_of_several(constant: Any) -> bool:
    """Returns whether an object that equals a constant may be another object than it."""
    kind = type(constant)
    if kind is int:
        return constant not in INTERNED
    if kind is str:  # the compiler interns identifiers
        return len(constant) > 1 and not (
            constant.isascii() and constant.isidentifier() and sys.intern(constant) is constant
        )
    return kind in (float, complex) or (kind in (bytes, tuple, frozenset) and len(constant) > 0)


def keys_of(container: Any) -> list[Any]:
    """Returns the keys of a dictionary or set, without code of the program's."""
    kinds: tuple[Any, ...] = (dict, set, frozenset)
    base = next((kind for kind in kinds if isinstance(container, kind)), None)
    return list(container if base is None else base.__iter__(container))


def metaclass_hashes(cls: type) -> bool:
    """Returns whether looking up a class in a dictionary asks its metaclass."""
    return type(cls).__hash__ is not type.__hash__
