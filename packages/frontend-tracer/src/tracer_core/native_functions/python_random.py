"""Python's random numbers: ``random.Random`` objects, and the module's functions, which are methods
of one.

An object that is seeded in the trace runs in the trace; the samples of another are symbolic scalars
(see trace/python_rng.py).
"""

from __future__ import annotations

import _random
import math
import random
import types
from collections.abc import Iterable
from typing import Any

from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import breaks, special, special_rows
from tracer_core.trace.python_rng import GAUSS_NEXT
from tracer_core.trace.tracer import Tracer

_KIND, _REASON = "side_effect_native", "Python's random numbers are drawn"
#: Methods that return a number and take numbers.
_OF_NUMBERS = (
    *("random", "getrandbits", "_randbelow", "_randbelow_with_getrandbits", "randrange", "randint"),
    *("uniform", "triangular", "betavariate", "expovariate", "gammavariate", "gauss"),
    *("lognormvariate", "normalvariate", "vonmisesvariate", "paretovariate", "weibullvariate"),
    "binomialvariate",
)
_OF_CONTAINERS = ("choice", "shuffle", "sample", "choices", "randbytes")
_METHODS: dict[str, Any] = {**vars(_random.Random), **vars(random.Random)}
#: Methods that others call.
_CALLED = sorted(
    {
        name
        for method in _METHODS.values()
        if isinstance(method, types.FunctionType)
        for name in method.__code__.co_names
        if callable(_METHODS.get(name))
    }
)
breaks(
    _KIND,
    _REASON,
    [
        method
        for name, method in vars(random.SystemRandom).items()
        if isinstance(method, types.FunctionType) and method not in _METHODS.values()
    ],
)


def _rows(names: Iterable[str]) -> dict[Any, tuple[str, ...]]:
    rows: dict[Any, tuple[str, ...]] = {}
    for name in names:
        if name in _METHODS:
            rows.setdefault(_METHODS[name], (name,))
    return rows


def _concrete(tracer: Tracer, obj: Any, value: Any, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Returns plain arguments of a method; breaks for others, and for objects of a subclass."""
    values: tuple[Any, ...] = tuple([tracer.scalars.concrete(item) for item in value])
    if not _uses_rng_directly(tracer, obj) or not all(_is_finite(value, kinds) for value in values):
        tracer.break_graph(_KIND, _REASON)
    return values


def _uses_rng_directly(tracer: Tracer, obj: Any) -> bool:
    """Returns whether an object samples by the methods of its class, which nobody has replaced; guards
    that it has no others."""
    if type(obj) is not random.Random:
        return False
    if any(
        tracer.entries.class_entry(type(obj), name)[1] is not _METHODS[name] for name in _CALLED
    ):
        return False
    return tracer.reads.keys(tracer.entries.dict_of(obj)) == [GAUSS_NEXT]


def _is_finite(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds and (type(value) is not float or math.isfinite(value))


@special(random.Random)
def new_random(tracer: Tracer, *seed: Any) -> Any:
    if len(seed) != 1 or not _is_finite(seed[0], (int, float, str, bytes)):
        tracer.break_graph(_KIND, _REASON)
    return tracer.native_calls.note_allocation(random.Random(*seed))


@special_rows(_rows(_OF_NUMBERS))
def sample(tracer: Tracer, method: str, obj: Any, *args: Any, **kwargs: Any) -> Any:
    written = _METHODS[method]
    if type(written) is types.FunctionType and not _uses_rng_directly(tracer, obj):
        return tracer.calls.frame_of(written, [obj, *args], kwargs)  # it asks the object's own
    values = _concrete(tracer, obj, args, (int, float))
    if kwargs:
        tracer.break_graph(_KIND, _REASON)
    if tracer.python_rng.known(obj) is not None:
        return tracer.python_rng.change(obj, method, values)
    return tracer.python_rng.sample(obj, method, values)


@special_rows(_rows(_OF_CONTAINERS))
def pick(tracer: Tracer, method: str, obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Interprets a method whose samples decide about its arguments."""
    if not _uses_rng_directly(tracer, obj) or tracer.python_rng.known(obj) is None:
        tracer.break_graph(_KIND, _REASON)
    return tracer.calls.frame_of(_METHODS[method], [obj, *args], kwargs)


@special_rows(_rows(["seed"]))
def seed(tracer: Tracer, method: str, obj: Any, *args: Any) -> None:
    values = _concrete(tracer, obj, args, (int, float, str, bytes))
    if not values:
        tracer.break_graph(_KIND, "a seed is drawn, which nothing repeats")
    tracer.python_rng.change(obj, method, values)


@special_rows(_rows(["getstate"]))
def state(tracer: Tracer, method: str, obj: Any) -> Any:
    known = tracer.python_rng.known(obj) if _uses_rng_directly(tracer, obj) else None
    if known is None:
        tracer.break_graph(_KIND, "the state of Python's random numbers is read")
    return known.getstate()


@special_rows(_rows(["setstate"]))
def set_state(tracer: Tracer, method: str, obj: Any, state: Any) -> None:
    (value,) = _concrete(tracer, obj, [state], (tuple,))
    if not is_constant(value):
        tracer.break_graph(_KIND, _REASON)
    tracer.python_rng.change(obj, method, (value,))
