"""Digests of code and of objects that guards tell apart by their identity.

A guard on the identity of a function, class or enumeration member takes for granted what cannot
change while the object lives: its bytecode, its methods, its value. Another process finds the
object by its name, and compares this digest in place of the identity.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import operator
import re
import sys
import types
from typing import Any

from tracer_core.guards.object_layout import HEAP_TYPE, flags, mro, namespace

#: Packages whose contents the versions in `environment` tell.
_VERSIONED = frozenset({"torch", "builtins", "numpy", "tracer_core"} | sys.stdlib_module_names)
_LITERALS = frozenset({int, float, complex, str, bytes, bool, type(None), type(...)})
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
#: Entries of a class that only say where it stands, follow from others, or name an address.
_DESCRIBING = frozenset(
    {"__module__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__",
     "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__conditional_annotations__",
     "__slotnames__"}  # which copyreg adds at the first copy of an instance
)  # fmt: skip
#: Entries of a class whose value native code may read where the class itself is guarded.
_METADATA_ENTRIES = frozenset(
    {"_fields", "__slots__", "__match_args__", "__doc__", "__annotations__"}
)
_ADDRESS = re.compile("0x[0-9a-f]+")


class Unknown(Exception):
    """What an object's identity stands for cannot be told from outside."""


def code_hash(code: types.CodeType, positions: bool = False) -> str:
    """Hashes what a code object does. positions: and where in its file it stands."""
    digest = hashlib.sha256()
    _add_code(code, positions, digest.update)
    return digest.hexdigest()


def _add_code(code: types.CodeType, positions: bool, update: Any) -> None:
    update(code.co_code)
    update(code.co_exceptiontable)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    update(repr((*names, *counts, code.co_qualname)).encode("utf-8", "backslashreplace"))
    if positions:
        update(code.co_linetable)
        update(repr((code.co_firstlineno, code.co_filename)).encode("utf-8", "backslashreplace"))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(constant, positions, update)
        else:
            update(_constant_text(constant).encode("utf-8", "backslashreplace"))


def _constant_text(constant: Any) -> str:
    """Returns a constant as text that differs where the constant does."""
    if isinstance(constant, frozenset):
        return f"frozenset({sorted(map(_constant_text, constant))})"
    if isinstance(constant, tuple):
        return f"({', '.join(map(_constant_text, constant))},)"
    return f"{type(constant).__name__} {constant!r}"


def digest_of(obj: Any) -> str | None:
    """Returns a digest of what the identity of an object stands for; None where it stands for
    nothing that the environment does not tell. Raises Unknown."""
    text = _text(obj)
    return None if text is None else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _text(obj: Any) -> str | None:
    if isinstance(obj, types.FunctionType):
        return code_hash(obj.__code__)
    if isinstance(obj, (staticmethod, classmethod)):
        return f"{type(obj).__name__} {_text(obj.__func__)}"
    if type(obj) is property:
        return f"property {[_text(part) for part in (obj.fget, obj.fset, obj.fdel)]}"
    if isinstance(obj, functools._lru_cache_wrapper):
        return f"cached {_text(obj.__wrapped__)}"
    if isinstance(obj, _GETTERS):
        return _literal(obj.__reduce__()[1])
    if isinstance(obj, enum.Enum):
        return f"{obj.name} {_literal(obj.value)}" if _is_of_the_program(type(obj)) else None
    return _class_text(obj) if isinstance(obj, type) else None


def shown(obj: Any) -> str:
    """Returns the name of an object for people. Runs no user code."""
    if isinstance(obj, types.FunctionType):
        return obj.__qualname__
    if isinstance(obj, type):
        return str(type.__dict__["__qualname__"].__get__(obj))
    kind: Any = type(obj)
    return f"a {namespace(kind).get('__module__', 'builtins')}.{shown(kind)}"


def _literal(value: Any) -> str:
    if type(value) is tuple:
        return f"({', '.join(map(_literal, value))},)"
    if type(value) not in _LITERALS:
        raise Unknown(f"{shown(value)} is no literal")
    return f"{type(value).__name__} {value!r}"


def _is_of_the_program(cls: type) -> bool:
    """Returns whether a class is made by Python code of a package without a version here."""
    made_by = namespace(cls).get("__module__")
    package = made_by.partition(".")[0] if isinstance(made_by, str) else ""
    return bool(flags(cls) & HEAP_TYPE) and package not in _VERSIONED


def _class_text(cls: type) -> str | None:
    """Returns the methods and descriptors of a class, of its metaclass and of the bases of both.
    Values of its attributes are guarded where they are read."""
    bases = [base for value in (cls, type(cls)) for base in mro(value) if _is_of_the_program(base)]
    if not bases:
        return None
    return "\n".join(f"{shown(base)}: {sorted(_entries(base))}" for base in bases)


def _entries(cls: type) -> list[str]:
    result = []
    for name, value in namespace(cls).items():
        if name in _DESCRIBING:
            continue
        kind = type(value)
        text = kind.__name__
        if kind in (types.FunctionType, staticmethod, classmethod, property):
            text = str(_text(value))
        elif name in _METADATA_ENTRIES:
            text = source_text(value)
        result.append(f"{name} {text}")
    return result


def source_text(value: Any) -> str:
    """Returns what docstrings, names of fields and annotations say, without running the program's
    code."""
    if isinstance(value, type):
        return f"{namespace(value).get('__module__')}.{shown(value)}"
    if type(value) is dict:
        return f"{{{', '.join(f'{source_text(k)}: {source_text(v)}' for k, v in value.items())}}}"
    if type(value) in (tuple, list):
        return f"[{', '.join(map(source_text, value))}]"
    if type(value).__module__ in ("typing", "types"):
        parts = getattr(value, "__origin__", None), *getattr(value, "__args__", ())
        return f"{shown(value)} {list(map(source_text, parts))}"
    if type(value) is str:  # a dataclass's may name objects by their addresses
        return repr(_ADDRESS.sub("0x", value))
    return _constant_text(value) if type(value) in _LITERALS else shown(value)
