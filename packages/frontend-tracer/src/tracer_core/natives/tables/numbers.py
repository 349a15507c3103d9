"""Built-in functions of numbers, math and cmath."""

from __future__ import annotations

import cmath
import math
import types
from typing import Any

import torch

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives import reading
from tracer_core.natives.effects import PURE, declare, special, special_each
from tracer_core.trace import special_methods
from tracer_core.trace.scalars import SYMBOLS
from tracer_core.trace.traced_arrays import is_array
from tracer_core.trace.traced_arrays import number as array_number
from tracer_core.trace.tracer import Tracer

_OF_ITERABLES = [f for name in ("fsum", "dist", "sumprod") if (f := getattr(math, name, None))]
_INTEGERS = (math.gcd, math.lcm, math.factorial, math.comb, math.perm, math.isqrt)
_NUMBERS = (int, float, complex, bool)
#: Functions of one object (and plain arguments) -> the special method that they call.
_ASKED = {
    abs: "__abs__",
    round: "__round__",
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
}


def _functions(module: Any) -> list[Any]:
    return [f for f in vars(module).values() if isinstance(f, types.BuiltinFunctionType)]


declare(PURE, _functions(cmath))


@special_each(bin, hex, oct, chr)
def numeric(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of numbers: converts objects with ``__index__`` to ints."""
    if any(isinstance(a, torch.Tensor) for a in args):
        return tracer.native_calls.native(function, *args, **kwargs)
    plain = [
        tracer.scalars.payload(tracer.operators.index(tracer.scalars.concrete(a))) for a in args
    ]
    tracer.native_calls.native_reads(*plain, *kwargs.values())
    if not all(map(is_constant, plain)):
        for value in plain:
            known = isinstance(value, _NUMBERS) or type(value).__module__ in _NUMBER_MODULES
            if not known and not tracer.entries.lacks(value, "__index__", "__float__"):
                tracer.break_graph(
                    "unknown_native", f"{function.__name__} of a {type(value).__name__}"
                )
    return function(*plain, **kwargs)


_NUMBER_MODULES = ("builtins", "fractions", "decimal")


@special_each(*_ASKED)
def ask(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs and is_array(tracer, args[0]):
        return array_number(tracer, function, args[0])
    method = tracer.entries.python_method(args[0], _ASKED[function]) if args else None
    if method is not None:
        return tracer.calls.call_value(method, [*args, *kwargs.values()], {})
    if args and isinstance(args[0], SYMBOLS) and not kwargs:
        return tracer.scalars.operate(function, args)
    return numeric(tracer, function, *args, **kwargs)


@special(divmod)
def divmod_of(tracer: Tracer, left: Any, right: Any) -> Any:
    if tracer.scalars.symbolic and tracer.scalars.operates(left, right):
        return tracer.operators.binary("//", left, right), tracer.operators.binary("%", left, right)
    order = [(left, "__divmod__", right), (right, "__rdivmod__", left)]
    if type(left) is type(right):
        order.pop()
    elif issubclass(type(right), type(left)):
        order.reverse()
    asked = False
    for receiver, method_name, other in order:
        method = tracer.entries.python_method(receiver, method_name)
        if method is not None:
            asked = True
            result = tracer.calls.call_value(method, [receiver, other], {})
            if result is not NotImplemented:
                return result
    if asked:
        kinds = " and ".join(f"'{tracer.exceptions.type_name(value)}'" for value in (left, right))
        raise TypeError(f"unsupported operand type(s) for divmod(): {kinds}")
    return numeric(tracer, divmod, left, right)


@special(pow)
def pow_of(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 2 and not kwargs:
        return tracer.operators.binary("**", *args)
    method = tracer.entries.python_method(args[0], "__pow__") if len(args) == 3 else None
    if method is not None:
        return tracer.calls.call_value(method, [*args], {})
    return numeric(tracer, pow, *args, **kwargs)


# -- math --


@special(math.prod)
def prod(tracer: Tracer, iterable: Any, /, *, start: Any = 1) -> Any:
    for item in tracer.containers.spread(iterable):
        start = tracer.operators.binary("*", start, item)
    return start


@special_each(*_OF_ITERABLES)
def of_iterables(tracer: Tracer, function: Any, *iterables: Any, **kwargs: Any) -> Any:
    numbers = [
        [special_methods.number(tracer, item) for item in tracer.containers.spread(one)]
        for one in iterables
    ]
    if any(isinstance(item, torch.Tensor) for items in numbers for item in items):
        tracer.break_graph("data_dependent_value", f"math.{function.__name__}() of tensors")
    return function(*numbers, **kwargs)


_CONVERTING = set(_functions(math)).difference(_ASKED, _OF_ITERABLES, [math.prod])


@special_each(*_CONVERTING)
def converting(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A function that converts its arguments to numbers first."""
    convert = special_methods.index if function in _INTEGERS else special_methods.number
    numbers = [convert(tracer, a) for a in args]
    if any(isinstance(a, SYMBOLS) for a in numbers) and not kwargs:
        return tracer.scalars.operate(function, tuple(numbers))
    if reading.read_values(tracer, *numbers, *kwargs.values()):
        return tracer.native_calls.native(function, *numbers, **kwargs)
    return function(*numbers, **kwargs)
