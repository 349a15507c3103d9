"""math and cmath; functions of objects with special methods are in `objects`."""

from __future__ import annotations

import cmath
import math
import types
from typing import Any

import torch

from tracer_core.natives import reading
from tracer_core.natives.effects import PURE, declare, special
from tracer_core.natives.tracing import Tracing
from tracer_core.trace import special_methods
from tracer_core.trace.scalars import SYMBOLS

_ROUNDING = (math.floor, math.ceil, math.trunc)
_OF_ITERABLES = tuple(f for name in ("fsum", "dist", "sumprod") if (f := getattr(math, name, None)))
_INTEGERS = (math.gcd, math.lcm, math.factorial, math.comb, math.perm, math.isqrt)


def _functions(module: Any) -> list[Any]:
    return [f for f in vars(module).values() if isinstance(f, types.BuiltinFunctionType)]


def _converting(function: Any, convert: Any) -> Any:
    """Handles a function that converts its arguments to numbers first."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        args = [convert(tracer, a) for a in args]
        if any(isinstance(a, SYMBOLS) for a in args) and not kwargs:
            return tracer.scalars.operate(function, tuple(args))
        if reading.read_values(tracer, *args, *kwargs.values()):
            return tracer.native_calls.native(function, *args, **kwargs)
        return function(*args, **kwargs)

    return handler


for _function in _functions(math):
    if _function in _INTEGERS:
        special(_function)(_converting(_function, special_methods.index))
    elif _function not in (*_ROUNDING, *_OF_ITERABLES, math.prod):
        special(_function)(_converting(_function, special_methods.number))
declare(PURE, _functions(cmath))


@special(math.prod)
def prod(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    total = kwargs.get("start", 1)
    for item in tracer.containers.spread(args[0]):
        total = tracer.operators.binary("*", total, item)
    return total


def _of_iterables(function: Any) -> Any:
    """Handles a function of iterables of numbers."""

    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        numbers = [
            [special_methods.number(tracer, item) for item in tracer.containers.spread(a)]
            for a in args
        ]
        if any(isinstance(item, torch.Tensor) for items in numbers for item in items):
            tracer.break_graph("data_dependent_value", f"math.{function.__name__}() of tensors")
        return function(*numbers, **kwargs)

    return handler


for _function in _OF_ITERABLES:
    special(_function)(_of_iterables(_function))
