"""Decides which callables may receive a symbolic scalar.

User functions (interpreted), tensor operators and arithmetic only pass numbers on. Any other
callable gets the plain number, which is then guarded by value.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
import operator
import sys
import types
import typing
from typing import Any

import torch

from tracer_core.fx_capture.known_scalars import single
from tracer_core.native_effects import inline_policy
from tracer_core.native_effects.effects import CALLABLES_IN_C, unbound
from tracer_core.torch_private.names import names

#: Scalar function that generated code recomputes at run time on the current scalars -> its source.
COMPUTED_CALLS: dict[Any, str] = {
    **{function: function.__name__ for function in (int, float, round, abs, min, max, single)},
    **{getattr(math, name): f"math.{name}" for name in (
        "sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "tanh",
        "atan", "pow", "floor", "ceil", "trunc", "fabs", "copysign", "hypot", "degrees", "radians",
        "erf", "gcd", "isqrt",
    )},
}  # fmt: skip
#: C functions whose handler passes a number on without reading it.
_PASSING: frozenset[Any] = frozenset(
    {isinstance, len, zip, enumerate, sum, divmod, pow, print, setattr, object.__setattr__, math.prod,
    list, tuple, dict, iter, next, reversed, map, filter, any, all, itertools.chain,
    list.append, list.extend, list.copy, dict.copy, dict.get, dict.keys, dict.values, dict.items,
    dict.update, dict.setdefault, dict.pop, list.insert, list.pop, tuple.__new__, functools.reduce,
    collections.deque.append, collections.deque.appendleft, collections.deque.extend,
    collections.OrderedDict.setdefault, collections.OrderedDict.update,
    *names("Generator.manual_seed Size.numel")}
    | COMPUTED_CALLS.keys()
    | {
        getattr(operator, name) for name in (
            "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "lt", "le",
            "eq", "ne", "gt", "ge", "iadd", "isub", "imul", "itruediv",
        )
    }
)  # fmt: skip
#: Modules of the standard library whose functions and classes only pass numbers on.
_PASSING_MODULES = frozenset(
    {"collections", "_collections_abc", "contextlib", "dataclasses", "functools", "types"}
)
#: Libraries besides the standard library that check the type of numbers.
_LIBRARIES = frozenset({"numpy", "scipy", "pandas", "sympy", "packaging"})
_SLOTS = (types.WrapperDescriptorType, types.MethodWrapperType)
_NUMBERS = (int, bool, float, complex)


def keeps_symbols(function: Any) -> bool:
    """Returns whether a symbolic argument stays symbolic."""
    kind = type(function)
    if kind is types.FunctionType:
        return function is typing.cast or not _is_of_library(
            function.__globals__.get("__name__", "")
        )
    if kind is types.MethodType or kind is functools.partial:
        return True  # decided for the function behind it
    if isinstance(function, type):
        return function in _PASSING or not (
            _is_of_library(function.__module__) or issubclass(function, (torch.Size, torch.device,
            enum.Enum)))  # fmt: skip
    if isinstance(function, CALLABLES_IN_C):
        return (
            function in _PASSING
            or unbound(function) in _PASSING
            or inline_policy.is_torch_operator(function)
        )
    return inline_policy.is_torch_operator(function) or isinstance(
        type(function).__dict__.get("__call__"), types.FunctionType
    ) or isinstance(function, torch.nn.Module)  # fmt: skip


def is_number_slot(function: Any) -> bool:
    """Returns whether a function is a special method of Python's numbers: ``int.__add__`` gives
    NotImplemented for what is no number, a symbolic size among it."""
    return type(function) in _SLOTS and function.__objclass__ in _NUMBERS


def _is_of_library(module: str) -> bool:
    package = (module or "").partition(".")[0]
    checks = package in sys.stdlib_module_names and module not in _PASSING_MODULES
    return checks or package in _LIBRARIES
