"""Scalar programs: the functions of flex_attention (score_mod, mask_mod) as a text.

A function of one score and its position (batch, head, query, key) is recorded on 0-d tensors and
lowered to core ATen operators (`scalar_recording`). `ScalarProgram` holds the result: inputs by
name, steps, outputs. An operator of the dispatcher takes its text as an argument, so that a graph,
its cache key and what is stored of it need nothing else. `evaluate` computes a program for all
positions at once; a backend makes the body of a kernel of it.

Every tensor of a program is 0-d, except those that the program reads from, and
these are only indexed (``load``).
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import OpOverload

aten = operators("aten")

#: The step that reads an element of a tensor: ``load(tensor, *indices)``.
LOAD = "load"
#: The step that reads a size of a tensor: ``size(tensor, dim)``.
SIZE = "size"

#: Functions on sizes in recorded graphs.
_ON_NUMBERS: Mapping[str, Any] = {
    f"operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "pow", "truediv")
} | {f"torch.{one.__name__}": one for one in names("sym_max sym_min sym_float sym_not")}
NUMBER_NAMES = {function: text for text, function in _ON_NUMBERS.items()}

#: A step: an operator's name, its arguments, its keyword arguments. `Ref` stands for a value.
Step = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of a program."""

    #: The index of an input, or the number of inputs plus the index of a step.
    number: int


@dataclass(frozen=True, slots=True)
class Contribution:
    """A gradient that is added to one element of a tensor."""

    #: The input's name.
    buffer: str
    #: Its indices, none for a 0-d tensor.
    at: tuple[Ref, ...]
    value: Ref


@dataclass(frozen=True, slots=True)
class ScalarProgram:
    """A recorded function."""

    #: The names of positions (``score``, ``b``, ``h``, ``q``, ``kv``, ``grad``), tensors (``t0``)
    #: and numbers (``n0``).
    inputs: tuple[str, ...]
    #: What is computed, in order.
    steps: tuple[Step, ...]
    #: The result; None for a gradient of zero.
    output: Ref | None
    #: Of a gradient: what it adds to the tensors that the function reads.
    contributions: tuple[Contribution, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Returns the program as JSON has it."""
        return {
            "inputs": self.inputs,
            "steps": [[name, _plain(args), [[k, _plain(v)] for k, v in given]]
                      for name, args, given in self.steps],
            "output": None if self.output is None else self.output.number,
            "contributions": [[one.buffer, [at.number for at in one.at], one.value.number]
                              for one in self.contributions],
        }  # fmt: skip

    @staticmethod
    def of(plain: Mapping[str, Any]) -> ScalarProgram:
        """Returns the program that `plain` wrote."""
        return ScalarProgram(
            tuple(plain["inputs"]),
            tuple((name, tuple(map(_value, args)), tuple((k, _value(v)) for k, v in given))
                  for name, args, given in plain["steps"]),
            None if plain["output"] is None else Ref(plain["output"]),
            tuple(Contribution(buffer, tuple(map(Ref, at)), Ref(value))
                  for buffer, at, value in plain["contributions"]),
        )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.number}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def _value(plain: Any) -> Any:
    if isinstance(plain, dict):
        return Ref(plain["ref"]) if "ref" in plain else getattr(torch, plain["dtype"])
    return tuple(map(_value, plain)) if isinstance(plain, list) else plain


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> dict[str, Any]:
    """Returns the fields of a text; do not mutate."""
    found: dict[str, Any] = json.loads(text)
    return found


def function_of(name: str) -> Any:
    """Returns what a step calls: an operator, or a function on numbers."""
    known = _ON_NUMBERS.get(name)
    if known is not None:
        return known
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


# -- evaluation --


def evaluate(
    program: ScalarProgram, given: Mapping[str, Any], device: torch.device
) -> dict[Ref, Any]:
    """Returns every value of a program as a tensor that broadcasts over (batch, head, query, key).

    given: the inputs by name; positions have four dimensions.
    """
    values: dict[Ref, Any] = {Ref(k): given[name] for k, name in enumerate(program.inputs)}
    made = len(program.inputs)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument]
        return [value_of(one) for one in argument] if isinstance(argument, tuple) else argument

    for number, (name, args, kwargs) in enumerate(program.steps):
        values[Ref(made + number)] = _computed(
            name, [value_of(one) for one in args], {k: value_of(v) for k, v in kwargs}, device
        )
    return values


def _computed(name: str, args: list[Any], kwargs: dict[str, Any], device: torch.device) -> Any:
    if name == SIZE:
        return args[0].shape[args[1]]
    if name == LOAD:
        buffer, *at = args
        found = aten.index.Tensor(buffer, at) if at else buffer
    else:
        function = function_of(name)
        if _makes(function):
            kwargs = {**kwargs, "device": device}
        found = function(*args, **kwargs)
    if isinstance(found, torch.Tensor) and found.dim() == 0:
        return found.view(1, 1, 1, 1)
    return found


@functools.cache
def _makes(function: Any) -> bool:
    """Whether an operator makes a tensor of numbers alone, and is told on which device."""
    if not isinstance(function, OpOverload):
        return False
    arguments = function._schema.arguments
    tensors = any("Tensor" in str(one.type) for one in arguments)
    return not tensors and any(one.name == "device" for one in arguments)
