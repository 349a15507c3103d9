"""Scalar programs: the functions of flex_attention (score_mod, mask_mod) as a string.

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
from collections.abc import Callable, Mapping, Sequence
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
} | {f"torch.{name.__name__}": name for name in names("sym_max sym_min sym_float sym_not")}
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

    def as_json(self) -> dict[str, Any]:
        """Returns the program as JSON has it."""
        return {
            "inputs": self.inputs,
            "steps": [[name, _as_json(args), [[k, _as_json(v)] for k, v in inputs]]
                      for name, args, inputs in self.steps],
            "output": None if self.output is None else self.output.number,
            "contributions": [[item.buffer, [at.number for at in item.at], item.value.number]
                              for item in self.contributions],
        }  # fmt: skip

    @staticmethod
    def of(simple: Mapping[str, Any]) -> ScalarProgram:
        """Returns the program that `simple` wrote."""
        return ScalarProgram(
            tuple(simple["inputs"]),
            tuple((name, tuple(map(_value, args)), tuple((k, _value(v)) for k, v in inputs))
                  for name, args, inputs in simple["steps"]),
            None if simple["output"] is None else Ref(simple["output"]),
            tuple(Contribution(buffer, tuple(map(Ref, at)), Ref(value))
                  for buffer, at, value in simple["contributions"]),
        )  # fmt: skip


#: Lowers a captured function of scalars: (graph, names of its placeholders in the program, whether
#: its result requires grad) -> its program and that of its gradient. `aot` has it; a tracer gets it.
ScalarLowering = Callable[
    [torch.fx.GraphModule, Sequence[str], bool], tuple[ScalarProgram, "ScalarProgram | None"]
]


def _as_json(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.number}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return [_as_json(item) for item in value] if isinstance(value, (tuple, list)) else value


def _value(simple: Any) -> Any:
    if isinstance(simple, dict):
        return Ref(simple["ref"]) if "ref" in simple else getattr(torch, simple["dtype"])
    return tuple(map(_value, simple)) if isinstance(simple, list) else simple


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> dict[str, Any]:
    """Returns the fields of a program; do not mutate."""
    data: dict[str, Any] = json.loads(text)
    return data


def function_of(name: str) -> Any:
    """Returns what a step calls: an operator, or a function on numbers."""
    known = _ON_NUMBERS.get(name)
    if known is not None:
        return known
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


# -- evaluation --


def evaluate(
    program: ScalarProgram, value: Mapping[str, Any], device: torch.device
) -> dict[Ref, Any]:
    """Returns every value of a program as a tensor that broadcasts over (batch, head, query, key).

    value: the inputs by name; positions have four dimensions.
    """
    values: dict[Ref, Any] = {Ref(k): value[name] for k, name in enumerate(program.inputs)}
    count = len(program.inputs)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return values[argument]
        return [value_of(item) for item in argument] if isinstance(argument, tuple) else argument

    for number, (name, args, kwargs) in enumerate(program.steps):
        values[Ref(count + number)] = _computed(
            name, [value_of(arg) for arg in args], {k: value_of(v) for k, v in kwargs}, device
        )
    return values


def _computed(name: str, args: list[Any], kwargs: dict[str, Any], device: torch.device) -> Any:
    if name == SIZE:
        return args[0].shape[args[1]]
    if name == LOAD:
        buffer, *at = args
        tensor = aten.index.Tensor(buffer, at) if at else buffer
    else:
        function = function_of(name)
        if _makes(function):
            kwargs = {**kwargs, "device": device}
        tensor = function(*args, **kwargs)
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 0:
        return tensor.view(1, 1, 1, 1)
    return tensor


@functools.cache
def _makes(function: Any) -> bool:
    """Whether an operator makes a tensor of numbers alone, and is told on which device."""
    if not isinstance(function, OpOverload):
        return False
    arguments = function._schema.arguments
    tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not tensors and any(argument.name == "device" for argument in arguments)
