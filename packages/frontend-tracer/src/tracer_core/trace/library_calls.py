"""Decides which Python functions of libraries run eagerly instead of being interpreted.

A function runs eagerly only if its library has no effects beyond its arguments, and the arguments
reach no object of the program: no tensor, no mutable object from before the trace, no callback.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import pathlib
import re
import struct
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.bytecode.code import NOT_PLAIN
from tracer_core.bytecode.frame import contents
from tracer_core.debug.crossed_limits import crossed
from tracer_core.guards.value_kinds import IDENTITY_TYPES, is_constant
from tracer_core.limits import MAX_DATA_DEPTH
from tracer_core.trace.native_reads import special_methods

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

#: Functions of ``os.path`` that ask the operating system. Releases of CPython define them in
#: different modules.
_PATHS = """abspath expanduser expandvars realpath _joinrealpath relpath ismount islink isfile isdir
exists lexists getsize getmtime getatime getctime samefile sameopenfile"""
#: Library without effects beyond its arguments -> names of its functions that have some.
PLAIN: Mapping[str, frozenset[str]] = {
    name: frozenset(impure.split())
    for name, impure in {
        "re": "", "string": "", "textwrap": "", "fractions": "", "numbers": "", "packaging": "",
        "platform": "",
        "keyword": "", "difflib": "", "fnmatch": "", "colorsys": "",
        "calendar": "prweek prmonth pryear format main", "base64": "",
        "html": "",
        "urllib.parse": "", "ipaddress": "", "shlex": "", "json": "dump load",
        "hashlib": "file_digest",
        "uuid": "uuid1 uuid4 uuid6 uuid7 uuid8 getnode", "statistics": "samples kde_random",
        "unicodedata": "", "codecs": "open",
        "pprint": "pp pprint",
        "token": "", "ast": "", "struct": "", "_strptime": "", "datetime": "",
        "opcode": "",
        "importlib.metadata": "", "sre_parse": "", "sre_compile": "",
        "ntpath": _PATHS, "posixpath": _PATHS, "genericpath": _PATHS,
        "typing": "reveal_type", "typing_extensions": "reveal_type",
        "abc": "register update_abstractmethods _dump_registry",
        "dataclasses": "", "types": "", "annotationlib": "",
        "inspect": "currentframe stack trace getouterframes getinnerframes getframeinfo"
        " _getmembers getattr_static classify_class_attrs getdoc",  # these read what no guard covers
    }.items()
}  # fmt: skip
_FILE_QUERIES = frozenset(dir(pathlib.Path)) - {*dir(pathlib.PurePath), "__enter__", "__exit__"}
PLAIN = {**PLAIN, "pathlib": _FILE_QUERIES}
#: Functions of these libraries that mutate or call their arguments: they are interpreted.
_INTERPRETED = frozenset(
    {
        "dataclass", "make_dataclass", "getmembers", "getmembers_static", "new_class",
        "prepare_class", "overload", "final", "runtime_checkable", "no_type_check",
        "dataclass_transform", "override", "coroutine", "resolve_bases",
    }
)  # fmt: skip
#: The libraries among them that inspect functions and classes without calling them.
_LOOKS_AT_CODE = frozenset(
    {"typing", "typing_extensions", "abc", "dataclasses", "inspect", "types", "annotationlib"}
)
#: Their functions that make classes or call function arguments: they are interpreted.
_MAKES_CLASSES = {
    "abc": {"__new__"}, "types": {"new_class", "prepare_class", "resolve_bases"},
    "dataclasses": {"dataclass", "wrap", "make_dataclass", "_process_class"},
    "typing": {"__new__", "_make_nmtuple", "namedtuple", "NamedTuple"},
    "typing_extensions": {"__new__", "_make_nmtuple", "namedtuple", "NamedTuple"},
    "annotationlib": {
        "get_annotations", "call_annotate_function", "call_evaluate_function", "evaluate",
        "_evaluate", "_get_and_call_annotate", "_get_dunder_annotations",
    },
}  # fmt: skip
#: Names of functions that look at their callers.
_CALLER_QUERIES = frozenset({"_caller", "warn", "_deprecated"})
#: Warns of a flag without meaning only, and keeps what it gives in a cache of its own.
_WARNS_SELDOM = vars(re)["_compile"]
_CONTAINERS = (list, tuple, dict, set, frozenset)
#: C types whose instances hold no objects of the program.
_CLOSED_TYPES = (
    re.Match, re.Pattern, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
    struct.Struct, type(hashlib.sha256()), types.GenericAlias,
)  # fmt: skip


@functools.cache
def _known(module: str) -> tuple[str, frozenset[str]] | None:
    package = module
    while package:
        if package in PLAIN:
            return package, PLAIN[package]
        package = package.rpartition(".")[0]
    return None


def is_known(module: str) -> bool:
    """Returns whether functions of a module may run eagerly."""
    return _known(module) is not None


def runs_eagerly(
    tracer: Tracer, function: types.FunctionType, args: list[Any], kwargs: dict[str, Any]
) -> bool:
    """Returns whether a library's function runs eagerly. Impure functions break the graph."""
    module = function.__globals__.get("__name__", "")
    known = _known(module)
    if known is None:
        return False
    package, impure = known
    if function.__name__ in impure:
        tracer.break_graph(
            "side_effect_native", f"{module}.{function.__qualname__} asks the outside"
        )
    if function.__name__ in _MAKES_CLASSES.get(package, ()):
        return False
    if function.__code__.co_flags & NOT_PLAIN:
        return False  # its body runs when the result is advanced
    if function.__name__ in _INTERPRETED or _queries_callers(function):
        return False
    held = [contents(cell) for cell in function.__closure__ or ()]
    if any(map(_is_foreign, filter(callable, held))):
        return False
    code = package in _LOOKS_AT_CODE
    values = (*args, *kwargs.values(), *(value for value in held if not callable(value)))
    return all(_is_data(tracer, value, code, MAX_DATA_DEPTH) for value in values)


def _queries_callers(function: types.FunctionType) -> bool:
    """Returns whether a function, or one of its module that it names, may look at its callers: the
    interpreter has their frames. A warning counts them."""
    named = (function.__globals__.get(name) for name in function.__code__.co_names)
    return any(
        not _CALLER_QUERIES.isdisjoint(item.__code__.co_names)
        for item in (function, *named)
        if type(item) is types.FunctionType and item is not _WARNS_SELDOM
    )


def _is_foreign(function: Any) -> bool:
    """Returns whether a function that a library's function holds (of ``types.coroutine``) is not of
    such a library."""
    return _known(getattr(function, "__module__", None) or "") is None


def _is_data(tracer: Tracer, value: Any, code: bool, depth: int) -> bool:
    """Returns whether no object of the program is reachable from a value. code: functions and
    classes are only inspected."""
    if is_constant(value):
        return True
    if depth == 0 or isinstance(value, torch.Tensor):
        if depth == 0:
            crossed("MAX_DATA_DEPTH")
        return False
    if type(value) in _CONTAINERS:
        children = [*value.keys(), *value.values()] if type(value) is dict else value
        return all(_is_data(tracer, child, code, depth - 1) for child in children)
    if code and type(value) is types.FunctionType:
        if is_known(value.__globals__.get("__name__", "")):
            return True
        tracer.unguarded["a library looks at a function: its source, its annotations"] = None
        return guard_function(tracer, value)
    if tracer.entries.made_class(value):  # its bases may be objects of the program
        bases = value.__dict__.get("__orig_bases__", ())
        return code and _is_data(tracer, bases, code, MAX_DATA_DEPTH)
    if isinstance(value, IDENTITY_TYPES):
        return code or _known(getattr(value, "__module__", None) or "") is not None
    if not tracer.provenance.is_fresh(value):
        return False
    if isinstance(value, _CLOSED_TYPES):
        return not special_methods(tracer, type(value))
    if _known(type(value).__module__) is None:
        return False
    return all(_is_data(tracer, part, code, depth - 1) for part in _parts(value))


def guard_function(tracer: Tracer, function: types.FunctionType) -> bool:
    """Guards a function's code and defaults; returns False if they contain mutable objects."""
    if tracer.names.made_here(function) or function.__dict__:
        return False
    provenance = tracer.provenance
    source = provenance.source_of(function) or provenance.constant(function)
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        value = provenance.read(getattr(function, name), provenance.sources.slot(source, name))
        tracer.native_calls.native_reads(value)
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return all(
        is_constant(value) or isinstance(value, (type, types.FunctionType)) for value in held
    )


def _parts(value: Any) -> list[Any]:
    """Returns the contents of a library object."""
    names = [name for cls in type(value).__mro__ for name in _slots(cls)]
    held = [
        getattr(value, name) for name in names if name != "__weakref__" and hasattr(value, name)
    ]
    if isinstance(value, tuple):
        held += list(value)
    return [*held, *getattr(value, "__dict__", {}).values()]


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
