"""Traits of captured calls: of torch functions, methods and Python's operators, by their names."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch

from tracer_core.ops.table import names_with, spelled_with
from tracer_core.ops.traits import Trait, is_pointwise
from tracer_core.torch_private.needed import OpOverload

#: In-place operator functions (``a += b``), by name.
AUGMENTED = spelled_with(Trait.AUGMENTS)
#: Methods and functions that change sizes or strides of their first argument.
RESHAPE_IN_PLACE = spelled_with(Trait.RESHAPES_IN_PLACE)
#: Methods that change metadata and layout of a tensor, but not its memory.
WITHOUT_A_WRITE = spelled_with(Trait.RESHAPES_IN_PLACE | Trait.SETS_METADATA)
#: Python's operators that are named like its keywords, and so end as writes in place do.
KEYWORD_OPERATORS = frozenset({operator.and_, operator.or_, operator.not_, operator.is_})
_POINTWISE = names_with(Trait.POINTWISE)

#: Parts of the names of operators that use random numbers.
_RANDOM = ("rand", "seed", "rng_state", "dropout", "bernoulli", "normal", "multinomial", "uniform",
           "exponential", "cauchy", "geometric", "poisson", "rrelu", "attention", "lstm", "gru", "rnn",
           "gumbel", "fractional", "lowrank")  # fmt: skip


def name_of(function: Any) -> str:
    """Returns ``add_`` for `torch.Tensor.add_`, ``"add_"`` and aten's operators, ``iadd`` for
    ``+=``.
    """
    if isinstance(function, str):
        return function.strip("_") if function.startswith("__") else function
    if isinstance(function, OpOverload):
        return str(function._schema.name.partition("::")[2])
    name = str(getattr(function, "__name__", ""))
    return name.strip("_") if name.startswith("__") else name


@functools.cache
def is_elementwise(name: str) -> bool:
    """Returns whether an operator of this name reads only the element of each argument that
    corresponds to the written element."""
    name = name.rstrip("_")
    if name in _POINTWISE or name.startswith("_foreach_"):
        return True
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if packet is not None else []
    return any(is_pointwise(getattr(packet, overload)) for overload in overloads)


def uses_rng(node: torch.fx.Node) -> bool:
    """Returns whether a node of a graph may use random numbers."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return may_use_rng(name)


def takes_random(node: torch.fx.Node) -> bool:
    """Returns whether a node of a captured graph uses random numbers with its arguments."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_call = node.op in ("call_function", "call_method")
    return is_call and may_use_rng(name) and not uses_no_rng(name, node.args, node.kwargs)


def may_use_rng(name: str) -> bool:
    """Returns whether an operator of this name may use random numbers."""
    return any(stem in name for stem in _RANDOM)


def uses_no_rng(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a call of dropout, or of attention, has a probability of zero."""
    if "dropout" in name:
        p = kwargs.get("p", args[1] if len(args) > 1 else None)
        train = kwargs.get("train", kwargs.get("training", args[2] if len(args) > 2 else True))
        return train is False or p == 0
    if name == "scaled_dot_product_attention":
        return bool(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0) == 0)
    return False
