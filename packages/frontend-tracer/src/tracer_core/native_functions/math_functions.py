"""Built-in functions of numbers, math and cmath."""

from __future__ import annotations

import cmath
import itertools
import math
import sys
import types
from typing import Any

import torch

from tracer_core.native_effects.effects import special, special_each
from tracer_core.torch_private.names import names
from tracer_core.trace.host_objects import CONVERSIONS, call_with_polyfills, host_object
from tracer_core.trace.symbolic_scalars import SYMBOLS
from tracer_core.trace.traced_arrays import is_array
from tracer_core.trace.traced_arrays import number as array_number
from tracer_core.trace.tracer import Tracer

_OF_ITERABLES = [math.fsum, math.dist]
#: Functions of one object (and plain arguments) -> the special method that they call.
_QUERIED = {
    abs: "__abs__",
    round: "__round__",
    math.floor: "__floor__",
    math.ceil: "__ceil__",
    math.trunc: "__trunc__",
}


def _functions(module: Any) -> list[Any]:
    return [f for f in vars(module).values() if isinstance(f, types.BuiltinFunctionType)]


@special_each(bin, hex, oct, chr)
def numeric(
    tracer: Tracer, function: Any, *args: Any, hooks: Any = CONVERSIONS, **kwargs: Any
) -> Any:
    """A function of numbers, which C code converts."""
    if any(isinstance(a, torch.Tensor) for a in args):
        return tracer.native_calls.native(function, *args, **kwargs)
    return call_with_polyfills(tracer, function, args, kwargs, hooks)


@special_each(*_QUERIED)
def by_special_method(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs and is_array(tracer, args[0]):
        return array_number(tracer, function, args[0])
    method = tracer.entries.python_method(args[0], _QUERIED[function]) if args else None
    if method is not None:
        return tracer.calls.call_value(method, [*args, *kwargs.values()], {})
    if args and isinstance(args[0], SYMBOLS) and not kwargs:
        return tracer.scalars.operate(function, args)
    return numeric(tracer, function, *args, hooks=(*CONVERSIONS, _QUERIED[function]), **kwargs)


@special(divmod)
def divmod_of(tracer: Tracer, left: Any, right: Any) -> Any:
    if tracer.scalars.symbolic and tracer.scalars.operates(left, right):
        return tracer.operators.binary("//", left, right), tracer.operators.binary("%", left, right)
    result = tracer.operators.answered("divmod", "divmod()", left, right)
    if result is not NotImplemented:
        return result
    tracer.operators.native_operands(left, right)
    return numeric(tracer, divmod, left, right)


@special(pow)
def pow_of(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 2 and not kwargs:
        return tracer.operators.binary("**", *args)
    if len(args) == 3:
        method = tracer.entries.python_method(args[0], "__pow__")
        result = NotImplemented if method is None else tracer.calls.call_value(method, [*args], {})
        if result is not NotImplemented:
            return result
        others = [tracer.entries.python_method(arg, "__rpow__") for arg in args[1:]]
        if any(other is not None for other in (method, *others)):
            tracer.break_graph("native_python", "pow() of three may ask the other two for __rpow__")
    return numeric(tracer, pow, *args, **kwargs)


# -- math --


@special(math.prod, *names("Size.numel"))
def prod(tracer: Tracer, iterable: Any, /, *, start: Any = 1) -> Any:
    for item in tracer.containers.spread(iterable):
        start = tracer.operators.binary("*", start, item)
    return start


if sys.version_info >= (3, 12):

    @special(math.sumprod)
    def sumprod(tracer: Tracer, p: Any, q: Any, /) -> Any:
        """C code adds up products of numbers; from the first pair of other objects on, their
        operators do."""
        left, right = tracer.containers.spread(p), tracer.containers.spread(q)
        pairs = list(zip(left, right, strict=False))
        numbers = list(itertools.takewhile(lambda pair: all(map(_is_number, pair)), pairs))
        total = math.sumprod(*zip(*numbers, strict=True)) if numbers else 0
        for a, b in pairs[len(numbers) :]:
            total = tracer.operators.binary("+", total, tracer.operators.binary("*", a, b))
        if len(left) != len(right):
            math.sumprod([0] * len(left), [0] * len(right))  # raises Python's own error
        return total


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool)


@special_each(*_OF_ITERABLES)
def of_iterables(tracer: Tracer, function: Any, *iterables: Any, **kwargs: Any) -> Any:
    items = [tracer.containers.spread(iterable) for iterable in iterables]
    if any(isinstance(item, torch.Tensor) for element in items for item in element):
        tracer.break_graph("data_dependent_value", f"math.{function.__name__}() of tensors")
    numbers = [[host_object(tracer, item) for item in element] for element in items]
    return function(*numbers, **kwargs)


_CONVERTING = {*_functions(math), *_functions(cmath)}.difference(
    _QUERIED, _OF_ITERABLES, [math.prod, getattr(math, "sumprod", None)]
)


@special_each(*_CONVERTING)
def converting(tracer: Tracer, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A function that converts its arguments to numbers first."""
    if any(isinstance(a, SYMBOLS) for a in args) and not kwargs:
        inputs = [a if isinstance(a, SYMBOLS) else host_object(tracer, a) for a in args]
        return tracer.scalars.operate(function, tuple(inputs))
    return numeric(tracer, function, *args, **kwargs)
