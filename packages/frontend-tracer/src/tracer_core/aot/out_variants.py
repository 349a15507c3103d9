"""Calls with ``out=`` of functions that torch composes of others: what they compute, and then a
copy.

In: a torch function and its arguments. Out: whether its ``out=`` form is composed, and the call.
What always holds: the memory that was given has the result's values; a result of other sizes raises
LoweringUnsupported.

The composed forms write through aliases that functional wrappers do not follow (``_unsafe_view`` in
``torch.kron``), or not at all where they meet a wrapper (``torch.linalg.matrix_rank``); operators
with kernels are followed by torch.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.errors import LoweringUnsupported
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket, pytree


@functools.cache
def composed(function: Any) -> bool:
    """Whether an ``out=`` form of a torch function is made of other operators, by torch's C++ or
    its Python.
    """
    if isinstance(function, OpOverload):
        return torch_private.is_composite(function)
    packet = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    if not isinstance(packet, OpOverloadPacket):
        return True
    overloads = [getattr(packet, name) for name in packet.overloads()]
    return any(torch_private.is_composite(one) for one in overloads if one._schema.is_mutable)


def call_into(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``function(*args, **kwargs)``, where `kwargs` has ``out``."""
    given = kwargs["out"]
    result = function(*args, **{name: value for name, value in kwargs.items() if name != "out"})
    made, places = pytree.tree_leaves(result), pytree.tree_leaves(given)
    if [tuple(one.shape) for one in made] != [tuple(one.shape) for one in places]:
        raise LoweringUnsupported(
            f"out= of {getattr(function, '__name__', function)} has other sizes"
        )
    for value, place in zip(made, places, strict=True):
        place.copy_(value)
    return given
