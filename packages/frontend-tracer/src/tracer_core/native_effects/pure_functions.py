"""Whether a function's result follows from its arguments alone, and which objects it reads for that.

Reads the code of a Python function whose arguments are constants, and of what it calls, without
running any, and lists the objects outside it whose contents it looks at: globals, modules, classes,
functions, cells.
"""

from __future__ import annotations

import builtins
import collections
import dis
import itertools
import keyword
import math
import operator
import types
import warnings
from collections.abc import Iterator
from typing import Any

from tracer_core.guards.value_kinds import is_constant

#: Builtins that read or change what is no argument.
_STATEFUL = frozenset(
    {
        *("open", "input", "print", "exec", "eval", "compile", "globals", "locals", "vars", "dir"),
        *("__import__", "__build_class__", "breakpoint", "setattr", "delattr", "id"),
    }
)
#: Modules whose builtin functions and types compute from their arguments.
_COMPUTING = frozenset(
    module.__name__ for module in (builtins, collections, itertools, math, operator)
) | {"_collections", "_operator"}
#: Entries of a class that its instances' behavior does not read.
_DESCRIBING = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__annotations__", "__annotate_func__"),
        *("__annotations_cache__", "__annotate__", "__firstlineno__", "__static_attributes__"),
        *("__dict__", "__weakref__", "__type_params__"),
    }
)
_READING = ("LOAD_GLOBAL", "LOAD_NAME")
_IGNORED = ("CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG")
#: Instructions that reach what no name of the code says.
_OPAQUE = ("IMPORT_NAME", "LOAD_BUILD_CLASS", "STORE_GLOBAL", "DELETE_GLOBAL")
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def outside_reads(function: types.FunctionType) -> list[Any] | None:
    """Returns the objects outside a function that its result hangs on; None if it may hang on state
    that these do not hold."""
    seen: dict[int, Any] = {}
    return list(seen.values()) if _follows(function, seen) else None


def _follows(value: Any, seen: dict[int, Any]) -> bool:
    """Returns whether what code does with a value found outside is known from `seen`."""
    if is_constant(value) or id(value) in seen:
        return True
    if value is warnings.warn:  # the result is its message's affair only under a filter that raises
        seen.update({id(value): value for value in (vars(warnings), warnings.filters)})
        return True
    if isinstance(value, types.FunctionType):
        return _function(value, seen)
    if isinstance(value, type):
        return _class(value, seen)
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        if isinstance(owner, types.ModuleType):
            return owner.__name__ in _COMPUTING and value.__name__ not in _STATEFUL
        return is_constant(owner)
    return value is keyword.iskeyword


def _function(function: types.FunctionType, seen: dict[int, Any]) -> bool:
    seen[id(function)] = function
    for where in (function.__globals__, function.__dict__, function.__kwdefaults__):
        if where is not None:
            seen[id(where)] = where
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        seen[id(cell)] = cell
        try:
            held.append(cell.cell_contents)
        except ValueError:  # empty
            return False
    return all(_follows(item, seen) for item in held) and all(
        _code(code, function, seen) for code in _codes(function.__code__)
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _code(code: types.CodeType, function: types.FunctionType, seen: dict[int, Any]) -> bool:
    instructions = [item for item in dis.get_instructions(code) if item.opname not in _IGNORED]
    for place, instruction in enumerate(instructions):
        if instruction.opname in _OPAQUE:
            return False
        if instruction.opname not in _READING:
            continue
        name = instruction.argval
        if name in function.__globals__:
            value = function.__globals__[name]
        elif hasattr(builtins, name):
            value = getattr(builtins, name)
        else:
            return False
        if isinstance(value, types.ModuleType):
            after = instructions[place + 1]
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                return False
            if after.argval not in vars(value):
                return False
            seen[id(vars(value))] = vars(value)
            value = vars(value)[after.argval]
        if not _follows(value, seen):
            return False
    return True


def _class(cls: type, seen: dict[int, Any]) -> bool:
    if not cls.__flags__ & _HEAP_TYPE:
        return cls.__module__ in _COMPUTING
    seen[id(cls)] = cls
    if type(cls) is not type:
        return False
    held = [value for name, value in vars(cls).items() if name not in _DESCRIBING]
    parts: list[Any] = [*cls.__bases__]
    for value in held:
        if isinstance(value, (staticmethod, classmethod)):
            parts.append(value.__func__)
        elif isinstance(value, property):
            parts += [part for part in (value.fget, value.fset, value.fdel) if part is not None]
        elif not isinstance(value, types.MemberDescriptorType):
            parts.append(value)
    return all(_follows(part, seen) for part in parts)
