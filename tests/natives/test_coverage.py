"""Every public callable of the standard modules that user code calls: a row, Python code, or a
named reason.
"""

from __future__ import annotations

import collections
import datetime
import importlib
import re
import sys
import types

import pytest

import tracer_core.native_functions  # noqa: F401  (fills the native effects table)
from tracer_core.native_effects import effects

MODULES = (
    "builtins math cmath operator functools itertools collections copy random re string textwrap statistics fractions"
    " decimal datetime enum dataclasses typing types numbers contextlib heapq bisect json struct uuid hashlib inspect"
    " weakref abc warnings logging time os os.path pathlib sys unicodedata binascii zlib"
).split()
TYPES = (
    list, dict, set, frozenset, tuple, collections.deque, collections.OrderedDict,
    collections.defaultdict, str, bytes,
    bytearray, int, float, complex, bool, range, slice, type(None), datetime.date,
    datetime.datetime,
    datetime.timedelta, re.Pattern, re.Match, types.MappingProxyType,
)  # fmt: skip

_TYPE = "a type that programs name but do not call"
_CONTEXT = "decimal numbers depend on a context of the thread: unknown, so the graph breaks"
_RESULT = "the type of a result of the operating system"
_BASE = "a class without behaviour of its own"
#: module.name -> why it has no row. What is here is unknown to the tracer: calling it breaks the
#: graph.
GAPS = {
    "builtins.memoryview": "a view of a buffer: its contents cannot be guarded",
    "builtins.object": "made by the interpreter itself",
    "datetime.tzinfo": _BASE, "numbers.Number": _BASE, "abc.ABC": _BASE,
    "abc.abstractproperty": _BASE,
    "contextlib.redirect_stdout": "Python code, inherited",
    "contextlib.redirect_stderr": "Python code, inherited",
    "struct.pack_into": "it writes into a buffer",
    "weakref.proxy": "it dies with its object",
    "weakref.CallableProxyType": _TYPE, "weakref.ProxyType": _TYPE,
    "re.Match": _TYPE, "re.Pattern": _TYPE, "time.struct_time": _RESULT,
    "pathlib.PosixPath": "Python code, inherited",
    "pathlib.PurePosixPath": "Python code, inherited",
    "pathlib.PureWindowsPath": "Python code, inherited",
    **({"pathlib.WindowsPath": "Python code, inherited"} if sys.version_info >= (3, 12) else {}),
    "unicodedata.UCD": _TYPE, "zlib.compressobj": "it keeps state",
    "zlib.decompressobj": "it keeps state",
    **{f"decimal.{name}": _CONTEXT for name in ("Context", "Decimal", "IEEEContext", "getcontext",
    "localcontext", "setcontext")},
    "statistics.Decimal": _CONTEXT, "fractions.Decimal": _CONTEXT,
    **{f"os.{name}": _RESULT for name in ("DirEntry", "sched_param", "stat_result",
    "statvfs_result", "terminal_size",
                                          "times_result", "uname_result", "waitid_result")},
}  # fmt: skip
#: Modules whose C types are named, not called.
TYPE_MODULES = ("types", "typing")
#: Methods that the interpreter does itself, or that nobody calls by name.
METHOD_GAPS = {
    **({"__hash__": "asked through hash()"} if sys.version_info >= (3, 12) else {}),
    "__getattribute__": "attributes are the interpreter's", "__init__": "made by the interpreter",
    "__sizeof__": "not a value of the program", "__reduce__": "pickling breaks",
    "__reduce_ex__": "pickling breaks",
    "__copy__": "copy.copy takes these as they are",
    "__deepcopy__": "copy.deepcopy takes these as they are",
    "__hash__": "through hash()",
    "__repr__": "of a container: through repr()", "__lt__": "of a dict or deque, by name",
    "__le__": "likewise",
    "__str__": "through str()", "__ior__": "raises",
    "__gt__": "likewise", "__ge__": "likewise", "__ne__": "likewise",
    "__new__": "made by the interpreter",
}  # fmt: skip


def reason_known(owner: str, name: str, value: object) -> bool:
    if isinstance(value, type) and (
        owner in TYPE_MODULES or value in (types.GenericAlias, types.UnionType)
    ):
        return True
    if owner == "typing" and not isinstance(value, types.BuiltinFunctionType):
        return True
    return f"{owner}.{name}" in GAPS


def has_row(value: object) -> bool:
    value = value.__func__ if isinstance(value, types.MethodType) else value
    try:
        if value in effects.EFFECTS:
            return True
    except TypeError:
        pass
    if isinstance(value, types.FunctionType):
        return True  # Python code: interpreted, run by natives.libraries, or in a package of policy
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return effects.unbound(value) in effects.EFFECTS
    if isinstance(value, type):
        return issubclass(value, BaseException) or any(
            isinstance(v, types.FunctionType) for v in vars(value).values()
        )
    return type(value) in effects.CALLED_TYPES or isinstance(
        getattr(type(value), "__call__", None), types.FunctionType
    )


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    module = importlib.import_module(name)
    public = [n for n in dir(module) if not n.startswith("_") and callable(getattr(module, n))]
    gaps = [
        n
        for n in public
        if not has_row(value := getattr(module, n)) and not reason_known(name, n, value)
    ]
    assert not gaps


@pytest.mark.parametrize("cls", TYPES, ids=lambda cls: cls.__name__)
def test_methods(cls):
    kinds = (
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
    )
    methods = {name: raw for name, raw in vars(cls).items() if isinstance(raw, kinds)}
    assert not [
        n for n, raw in methods.items() if raw not in effects.EFFECTS and n not in METHOD_GAPS
    ]


def test_every_reason_is_needed():
    for name in GAPS:
        owner, _, attribute = name.rpartition(".")
        module = importlib.import_module(owner)
        assert not hasattr(module, attribute) or not has_row(getattr(module, attribute)), name
